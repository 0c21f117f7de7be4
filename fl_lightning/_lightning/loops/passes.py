"""Several passes in one optimizer step, for objectives that take gradients at several points."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fl_lightning._lightning.loops.local_optimizers import unscale
from fl_lightning._lightning.loops.steps import Pass

if TYPE_CHECKING:
    from fl_lightning._lightning.loops.client_loop import ClientLoop


class NoGradient(Exception):
    """A pass without a loss. It ends its step."""


class InfiniteGradient(NoGradient):
    """A pass whose gradient is infinite under the present scale of a gradient scaler."""


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
        one_pass = self._next(batch)
        if one_pass() is None:
            raise NoGradient
        if not unscale(self._loop.trainer, one_pass.optimizer):
            raise InfiniteGradient

    def step(self, batch: int = 0) -> None:
        """Let the optimizer take a step.

        Raises:
            ValueError: If it asks for the loss at several points of its own.
        """
        one_pass = self._next(batch)
        one_pass.optimize()
        if one_pass.runs > 1:
            raise ValueError(
                "The objective takes gradients at several points, which needs an optimizer that calls its closure once "
                f"a step, got {type(one_pass.optimizer).__name__}. Use torch.optim.SGD."
            )

    def _next(self, place: int) -> Pass:
        """Return the pass that comes next, on one of the step's batches."""
        while len(self._batches) <= place:
            self._batches.append(self._loop._transfer(next(self._further)))
        one_pass = Pass(self._loop, self._batches[place], self._batch_idx, self._is_quiet)
        if not self._is_quiet:
            self.outputs = one_pass.outputs
        self._is_quiet = True
        return one_pass
