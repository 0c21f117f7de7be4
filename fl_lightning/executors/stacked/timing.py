"""How long a client's step takes alone and in a stack, measured without a trace."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.lean_step import is_plain_sgd
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.base import CannotVectorize
from fl_lightning.executors.stacked.batching import stack_batches
from fl_lightning.executors.stacked.memory_format import channels_last
from fl_lightning.executors.stacked.snapshot import preserved_attributes, preserved_generators
from fl_lightning.executors.stacked.stack import ModelStack
from fl_lightning.executors.stacked.stacked_tensor import StackedWeight
from fl_lightning.executors.stacked.training import Steps

_REPEATS = 5


class StepTiming:
    """Steps of one client, and of several, that leave module, logs and generators as they were.

    Args:
        clients: Trains clients.
        steps: How ``training_step`` runs on stacks.
        batch: A client's first batch, as the module takes it.
        models: Models of a stack.
    """

    def __init__(self, clients: LocalTraining, steps: Steps, batch: Any, models: int) -> None:
        self._clients, self._steps, self._batch = clients, steps, batch
        self.models = models
        #: Whether the module draws random numbers when it trains, known after :meth:`seconds_alone`.
        self.draws = False

    def load(self, model: Tensor) -> None:
        """Give the module a client's received model, shape ``(size,)``."""
        self._clients.vector.write(model)

    def seconds_channels_last(self) -> float:
        """Return the seconds of one client's step with channels last; infinite if nothing changes, or it fails.

        Infinite too where the module draws random numbers: masks are drawn in the order of memory, and must not depend
        on what a clock said.
        """
        with channels_last(self._clients.vector.module) as changed:
            if not changed or self.draws:
                return math.inf
            try:
                return self.seconds_alone()
            except Exception:  # a `view` across channels, say; the module may well work as it is
                return math.inf

    def seconds_alone(self) -> float:
        """Return the seconds of one client's step.

        Raises:
            CannotVectorize: If the step leaves something behind.
        """
        vector, stacked = self._clients.vector, self._steps.stacked
        scratch = [parameter.detach().clone() for parameter in vector.parameters]

        def step() -> None:
            with stacked.recording():
                loss = stacked.training_step(self._batch, 0)
            gradients = torch.autograd.grad(loss, vector.parameters, allow_unused=True)
            _add(scratch, gradients)

        held = vector.read()
        try:
            with self._kept() as changes:
                before = self._random_state()
                seconds = _shortest(step)
                self.draws = not torch.equal(before, self._random_state())
                changed = changes()
        finally:
            vector.write(held)  # a training pass moves buffers
        if changed:
            raise CannotVectorize(f"`training_step` changes {changed}, of which there is one for all clients")
        return seconds

    def seconds_at_once(self) -> float:
        """Return the seconds of a stack's step, per client."""
        stack = ModelStack(self._clients.vector, [self._clients.vector.read()] * self.models)
        batch = stack_batches([self._batch] * self.models)
        scratch = [parameter.detach().clone() for parameter in stack.parameters]

        def mapped() -> None:
            losses, *_ = self._steps.mapped(stack.parameters, stack.buffers, batch, 0)
            _add(scratch, torch.autograd.grad(losses.sum(), stack.parameters, allow_unused=True))

        def fused() -> None:
            self._steps.fused([StackedWeight(parameter, 0.0) for parameter in stack.parameters], batch, 0)

        with self._kept():
            if self._is_fusible():
                try:
                    return _shortest(fused) / self.models
                except CannotVectorize:
                    self._steps.fused.works = False
            return _shortest(mapped) / self.models

    def _random_state(self) -> torch.Tensor:
        device = self._clients.vector.device
        return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()

    def _is_fusible(self) -> bool:
        trainer = self._clients.trainer
        plain = is_plain_sgd(trainer.optimizers[0], but="weight_decay") and not trainer.gradient_clip_val
        return plain and self._steps.fused.works and int(trainer.accumulate_grad_batches) == 1

    @contextmanager
    def _kept(self) -> Iterator[Callable[[], str | None]]:
        with (
            preserved_generators(),
            preserved_attributes(self._clients.vector.module) as changes,
            self._clients.quiet.unnoticed(),
        ):
            yield changes


def _add(scratch: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
    pairs = [(own, gradient) for own, gradient in zip(scratch, gradients, strict=True) if gradient is not None]
    torch._foreach_add_([own for own, _ in pairs], [gradient for _, gradient in pairs], alpha=-0.01)


def _shortest(work: Callable[[], None]) -> float:
    """Return the seconds of the shortest of some runs, the first left out."""
    times = []
    for _ in range(_REPEATS + 1):
        _finish()
        begun = time.perf_counter()
        work()
        _finish()
        times.append(time.perf_counter() - begun)
    return min(times[1:])


def _finish() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
