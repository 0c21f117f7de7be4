"""The steps of one stack of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning._lightning.stacked_loop import StackedLoop
from fl_lightning.clients.state_vector import unshared
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.base import CannotVectorize
from fl_lightning.executors.stacked.batching import select
from fl_lightning.executors.stacked.corrections import StackedCorrections
from fl_lightning.executors.stacked.fused import FusedStep
from fl_lightning.executors.stacked.mapped import MappedStep
from fl_lightning.executors.stacked.optimizer import StackedOptimizer, clip
from fl_lightning.executors.stacked.sources import BatchSource, Groups
from fl_lightning.executors.stacked.stack import ModelStack
from fl_lightning.executors.stacked.stacked_tensor import StackedWeight

Gradients = list[Tensor | None]


@dataclass
class Steps:
    """How a fit's ``training_step`` runs on stacks.

    Attributes:
        stacked: Runs it and reports to Lightning.
        mapped: By ``torch.func``, for any module.
        fused: By batched products that step at once, for some.
    """

    stacked: StackedLoop
    mapped: MappedStep
    fused: FusedStep


class StackTraining:
    """Trains the models of a stack.

    Args:
        clients: Trains clients.
        steps: How ``training_step`` runs.
        stack: The models, of the longest client first.
        windows: For each of them, how many batches each of its optimizer steps takes.
        source: Gives their batches.
        terms: What their local objectives add.
        optimizer: Steps them.
    """

    def __init__(
        self,
        clients: LocalTraining,
        steps: Steps,
        stack: ModelStack,
        windows: Sequence[Sequence[int]],
        source: BatchSource,
        terms: StackedCorrections,
        optimizer: StackedOptimizer,
    ) -> None:
        self._clients, self._steps, self._stack, self._windows = clients, steps, stack, windows
        self._source, self._terms, self._optimizer = source, terms, optimizer
        trainer = clients.trainer
        self._accumulate = int(trainer.accumulate_grad_batches)
        self._clip = float(trainer.gradient_clip_val or 0.0), trainer.gradient_clip_algorithm
        optimizer.attach(stack.parameters)
        self._decays = optimizer.add_weight_decay(terms.weight_decays) if any(terms.weight_decays) else None
        self._fusible = self._accumulate == 1 and terms.quadratic and not self._clip[0] and self._decays is None
        self._done = 0  # batches that the longest client has trained on

    def run(self) -> list[list[float]]:
        """Take all steps; return each client's sum of learning rates for each parameter, if that is asked for."""
        clients, optimizer = self._clients, self._optimizer
        schedules = clients.loop.optimizers
        counts_lr = clients.algorithm.objective.needs_summed_lr
        so_far = [0.0] * len(self._stack.parameters)
        summed: list[list[float]] = [[] for _ in self._windows]
        for step in range(len(self._windows[0])):
            active = sum(len(windows) > step for windows in self._windows)
            if self._stack.keep(active):
                optimizer.attach(self._stack.parameters)
            clients.loop.stop_if_terminated()
            stepped = self._step(step, active)
            if counts_lr:
                rates = optimizer.learning_rates()
                so_far = [a + (b if own else 0.0) for a, b, own in zip(so_far, rates, stepped, strict=True)]
                summed[:active] = [so_far] * active
            if schedules.by_step:
                schedules.step_in_client(step + 1)
                optimizer.refresh()
        return summed

    def _step(self, step: int, active: int) -> list[bool]:
        """Take one optimizer step of the first ``active`` clients; return which parameters were stepped."""
        stack, total = self._stack, [None] * len(self._stack.parameters)
        gradients: Gradients = list(total)
        batches, losses = 0, torch.zeros(())
        for micro in range(max(windows[step] for windows in self._windows[:active])):
            rows = [row for row in range(active) if self._windows[row][step] > micro]
            groups = self._source.next(rows)
            self._steps.stacked.begin_step()
            fused = self._fused(groups) if self._fusible and self._steps.fused.works else None
            if fused is not None:
                self._done += 1
                self._steps.stacked.end_step(active, active, fused)
                return [True] * len(stack.parameters)
            losses, new = self._gradients(groups)
            gradients = new if micro == 0 else [_sum(a, b) for a, b in zip(gradients, new, strict=True)]
            batches += len(rows)
            self._done += 1
        self._correct(gradients)
        self._steps.stacked.end_step(batches, active, losses / len(rows))
        return [gradient is not None for gradient in gradients]

    def _gradients(self, groups: Groups) -> tuple[Tensor, Gradients]:
        """Return the sum of the clients' losses on their next batches, and its gradients: one pass for each shape."""
        stack, total, renewed = self._stack, torch.zeros((), device=self._stack.parameters[0].device), []
        for rows, batch in groups:
            # the backward pass wants buffers as the forward pass left them: those of a part are put back after it
            whole = len(rows) == stack.active
            parameters = [select(parameter, rows) for parameter in stack.parameters]
            buffers = stack.buffers if whole else [select(buffer, rows).clone() for buffer in stack.buffers]
            losses, logged, values, after = self._steps.mapped(parameters, buffers, batch, self._done)
            self._steps.stacked.log(logged, values, batch.first, rows)
            renewed.append((rows, after))
            total = total + losses.sum()
        scaled = total / self._accumulate if self._accumulate > 1 else total
        gradients = torch.autograd.grad(scaled, stack.parameters, allow_unused=True)
        for rows, after in renewed:
            stack.renew_buffers(rows, after)
        return total.detach(), list(gradients)

    def _correct(self, gradients: Gradients) -> None:
        """Apply local objectives, clipping and the optimizer, in Lightning's order."""
        stack, terms = self._stack, self._terms
        value, algorithm = self._clip
        if terms or value or not self._optimizer.is_plain:
            # a linear layer's gradient is transposed in memory: to be read more than once it is turned first
            gradients[:] = [None if gradient is None else gradient.contiguous() for gradient in unshared(gradients)]
        if terms:
            terms.correct(stack.parameters, gradients)
        if value:
            clip([gradient for gradient in gradients if gradient is not None], value, algorithm)
        if self._decays is not None:
            terms.decay(stack.parameters, gradients, self._decays)
        self._optimizer.step(stack.parameters, gradients)

    def _fused(self, groups: Groups) -> Tensor | None:
        """Take a fused step and return the mean loss; ``None`` if it cannot be."""
        if not self._optimizer.is_plain or any(rows[-1] - rows[0] + 1 != len(rows) for rows, _ in groups):
            return None
        results = []
        for number, (rows, batch) in enumerate(groups):
            try:
                results.append(self._steps.fused(self._weights(rows), batch, self._done))
            except CannotVectorize:
                if number:
                    raise  # earlier groups have been stepped
                self._steps.fused.works = False
                return None
        for (rows, batch), (_, logged, values) in zip(groups, results, strict=True):
            self._steps.stacked.log(logged, values, batch.first, rows)
        return torch.cat([losses for losses, _, _ in results]).mean()

    def _weights(self, rows: Sequence[int]) -> list[StackedWeight]:
        """Return the parameters of neighbouring clients with what a step needs to know."""
        optimizer, terms, pulls = self._optimizer, self._terms, self._terms.pulls(rows)
        settings = zip(self._stack.parameters, optimizer.learning_rates(), optimizer.weight_decays(), strict=True)
        return [
            StackedWeight(select(parameter, rows), lr, 1 - lr * (pulls + decay), terms.shift(place, rows))
            for place, (parameter, lr, decay) in enumerate(settings)
        ]


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b
