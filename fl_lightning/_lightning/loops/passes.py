"""The passes of one optimizer step: forward, backward, and several of them where an objective asks for that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning._lightning.loops.local_optimizers import unscale
from fl_lightning._lightning.loops.steps import StepCorrection

if TYPE_CHECKING:
    from fl_lightning._lightning.loops.client_loop import ClientLoop


class NoGradient(Exception):
    """A pass without a loss. It ends its step."""


class InfiniteGradient(NoGradient):
    """A pass whose gradient is infinite under the present scale of a gradient scaler."""


class Pass:
    """A forward and backward pass over a batch: the closure that an optimizer's step calls.

    Args:
        loop: The clients' loop, with a client at work.
        batch: The batch, on the module's device.
        batch_idx: Position in the client's local training.
        is_quiet: Whether what ``training_step`` logs is dropped.

    Attributes:
        correction: What the client's objective does to the pass.
        optimizer: The module's optimizer.
        outputs: What Lightning hands to ``on_train_batch_end``.
        runs: How often it ran.
    """

    def __init__(self, loop: ClientLoop, batch: Any, batch_idx: int, is_quiet: bool = False) -> None:
        assert loop.correction is not None
        self._step = loop.step
        self.batch = batch
        self.batch_idx = batch_idx
        self.is_quiet = is_quiet
        self.correction: StepCorrection = loop.correction
        self.optimizer: Optimizer = loop.trainer.optimizers[0]
        self.outputs: dict[str, Any] = {}
        self.runs = 0

    def __call__(self) -> Tensor | None:
        """Run ``training_step`` and the backward pass; return the loss, None if there is none."""
        self.runs += 1
        return self._step.take_gradients(self)

    def step(self) -> None:
        """Let the optimizer take a step, in which it calls the pass.

        Raises:
            MisconfigurationException: If it has not called it.
        """
        self._step.take(self)
        if not self.runs:
            raise MisconfigurationException(
                f"`{type(self.optimizer).__name__}.step` was not given the closure, or has not called it, so nothing "
                "was trained. A user-defined `optimizer_step` must call `optimizer.step(closure=optimizer_closure)`."
            )


class StepPasses:
    """The passes of one step that takes several gradients.

    The first pass is the step's to hooks and logs. The others log nothing, and leave metric objects as they are.

    Args:
        loop: The clients' loop.
        batch: The step's first batch, on the module's device.
        batch_idx: Position of the step in the client's local training.
        further: The step's other batches, as the client's data give them.
        is_quiet: Whether the first pass is logged as little.
    """

    def __init__(
        self, loop: ClientLoop, batch: Any, batch_idx: int, further: Iterable[Any] = (), is_quiet: bool = False
    ) -> None:
        self._loop = loop
        self._batch_idx = batch_idx
        self._batches = [batch]
        self._further = iter(further)
        self._is_quiet = is_quiet
        #: What Lightning hands to ``on_train_batch_end``: the first pass's.
        self.outputs: dict[str, Any] = {}

    def run(self, walk: Callable[[StepPasses], None]) -> None:
        """Let a walk take its step from these passes."""
        with suppress(NoGradient):
            walk(self)
        # A step that has ended early takes its batches all the same.
        for _ in self._further:
            pass

    def gradient(self, batch: int = 0) -> None:
        """Compute the gradients, and step nothing.

        Raises:
            NoGradient: If there is no loss.
            InfiniteGradient: If a gradient scaler finds infinite gradients.
        """
        made = self._next(batch)
        if made() is None:
            raise NoGradient
        if not unscale(self._loop.trainer, made.optimizer):
            raise InfiniteGradient

    def step(self, batch: int = 0) -> None:
        """Let the optimizer take a step.

        Raises:
            ValueError: If it asks for the loss at several points of its own.
        """
        made = self._next(batch)
        made.step()
        if made.runs > 1:
            raise ValueError(
                "The objective takes gradients at several points, which needs an optimizer that calls its closure once "
                f"a step, got {type(made.optimizer).__name__}. Use torch.optim.SGD."
            )

    def _next(self, place: int) -> Pass:
        """Return the pass that comes next, on one of the step's batches."""
        while len(self._batches) <= place:
            self._batches.append(self._loop._transfer(next(self._further)))
        made = Pass(self._loop, self._batches[place], self._batch_idx, self._is_quiet)
        if not self._is_quiet:
            self.outputs = made.outputs
        self._is_quiet = True
        return made
