"""The steps of one stack of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.journal import Entry, Journal
from fl_lightning._lightning.stacked_loop import StackedLoop
from fl_lightning.clients.state_vector import unshared
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.batching import StackedBatch, select
from fl_lightning.executors.stacked.corrections import StackedCorrections
from fl_lightning.executors.stacked.mapped import MappedStep
from fl_lightning.executors.stacked.optimizer import StackedOptimizer, clip
from fl_lightning.executors.stacked.randomness import ClientGenerators, nothing_drawn
from fl_lightning.executors.stacked.sources import BatchSource, Groups
from fl_lightning.executors.stacked.stack import ModelStack

Gradients = list[Tensor | None]


@dataclass
class Steps:
    """How a fit's ``training_step`` runs on stacks.

    Attributes:
        stacked: Runs it.
        mapped: By ``torch.func``, for any module.
    """

    stacked: StackedLoop
    mapped: MappedStep


@dataclass
class Stack:
    """The clients of a stack, longest first.

    Attributes:
        slots: Their slots.
        models: Their models.
        windows: For each of them, how many batches each of its optimizer steps takes.
        source: Gives their batches.
        terms: What their local objectives add.
        generators: Theirs, where the module draws random numbers; ``None`` where it draws none.
    """

    slots: Sequence[int]
    models: ModelStack
    windows: Sequence[Sequence[int]]
    source: BatchSource
    terms: StackedCorrections
    generators: ClientGenerators | None


class StackTraining:
    """Trains the models of a stack.

    Args:
        clients: Trains clients.
        steps: How ``training_step`` runs.
        stack: The clients.
        optimizer: Steps them.
        journal: Keeps what they log.
    """

    def __init__(
        self, clients: LocalTraining, steps: Steps, stack: Stack, optimizer: StackedOptimizer, journal: Journal
    ) -> None:
        self._clients, self._steps, self._stack, self._optimizer = clients, steps, stack, optimizer
        self._models, self._windows, self._terms, self._journal = stack.models, stack.windows, stack.terms, journal
        trainer = clients.trainer
        self._accumulate = int(trainer.accumulate_grad_batches)
        self._clip = float(trainer.gradient_clip_val or 0.0), trainer.gradient_clip_algorithm
        optimizer.attach(stack.models.parameters)
        decays = stack.terms.weight_decays
        self._decays = optimizer.add_weight_decay(decays) if any(decays) else None
        self._done = 0  # batches that the longest client has trained on
        #: Whether the module has drawn random numbers.
        self.drew = False

    def run(self) -> list[list[float]]:
        """Take all steps; return each client's sum of learning rates for each parameter, if that is asked for.

        Raises:
            CannotVectorize: If the clients cannot be trained at once.
        """
        with nothing_drawn(self._clients.vector.device):
            return self._run()

    def _run(self) -> list[list[float]]:
        clients, optimizer = self._clients, self._optimizer
        schedules = clients.loop.optimizers
        counts_lr = clients.algorithm.objective.needs_summed_lr
        so_far = [0.0] * len(self._models.parameters)
        summed: list[list[float]] = [[] for _ in self._windows]
        for step in range(len(self._windows[0])):
            active = sum(len(windows) > step for windows in self._windows)
            if self._models.keep(active):
                optimizer.attach(self._models.parameters)
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
        gradients: Gradients = [None] * len(self._models.parameters)
        for micro in range(max(windows[step] for windows in self._windows[:active])):
            rows = [row for row in range(active) if self._windows[row][step] > micro]
            ends = [self._windows[row][step] == micro + 1 for row in rows]
            losses, new = self._gradients(self._stack.source.next(rows), ends)
            gradients = new if micro == 0 else [_sum(a, b) for a, b in zip(gradients, new, strict=True)]
            self._done += 1
            self._steps.stacked.show(len(rows), losses / len(rows))
        self._correct(gradients)
        return [gradient is not None for gradient in gradients]

    def _gradients(self, groups: Groups, ends: Sequence[bool]) -> tuple[Tensor, Gradients]:
        """Return the sum of the clients' losses on their next batches, and its gradients: one pass for each shape."""
        models, renewed = self._models, []
        total = torch.zeros((), device=models.parameters[0].device)
        for rows, batch in groups:
            # the backward pass wants buffers as the forward pass left them: those of a part are put back after it
            whole = len(rows) == models.active
            parameters = [select(parameter, rows) for parameter in models.parameters]
            buffers = models.buffers if whole else [select(buffer, rows).clone() for buffer in models.buffers]
            draws = None if self._stack.generators is None else self._stack.generators.drawing(rows)
            losses, logged, after = self._steps.mapped(parameters, buffers, batch, self._done, draws)
            self.drew = self.drew or (draws is not None and draws.drew)
            steps = dict(zip(sorted(row for own, _ in groups for row in own), ends, strict=True))
            self._keep(Entry(logged, logged.tensors, self._slots(rows), [steps[row] for row in rows], batch.first))
            renewed.append((rows, after))
            total = total + losses.sum()
        scaled = total / self._accumulate if self._accumulate > 1 else total
        gradients = torch.autograd.grad(scaled, models.parameters, allow_unused=True)
        for rows, after in renewed:
            models.renew_buffers(rows, after)
        return total.detach(), list(gradients)

    def _slots(self, rows: Sequence[int]) -> list[int]:
        return [self._stack.slots[row] for row in rows]

    def _keep(self, entry: Entry) -> None:
        """Keep what clients logged."""
        if self._clients.loop.optimizers.by_step:
            entry.settings = self._optimizer.settings()
        self._journal.add(entry)

    def _correct(self, gradients: Gradients) -> None:
        """Apply local objectives, clipping and the optimizer, in Lightning's order."""
        models, terms = self._models, self._terms
        value, algorithm = self._clip
        if terms or value or not self._optimizer.is_plain:
            # a linear layer's gradient is transposed in memory: to be read more than once it is turned first
            gradients[:] = [None if gradient is None else gradient.contiguous() for gradient in unshared(gradients)]
        if terms:
            terms.correct(models.parameters, gradients)
        if value:
            stepped = self._optimizer.stepped
            clip([g for g, own in zip(gradients, stepped, strict=True) if own and g is not None], value, algorithm)
        if self._decays is not None:
            terms.decay(models.parameters, gradients, self._decays)
        self._optimizer.step(models.parameters, gradients)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b
