"""Batches of a form that no trial has seen: the step is tried on a copy of the module first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.copies import WatchedTrainer
from fl_lightning._lightning.stacked_loop import StackedLoop
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.changes.module_state import ModuleState
from fl_lightning.executors.stacked.changes.outside import Outside
from fl_lightning.executors.stacked.changes.through_trainer import ThroughTrainer
from fl_lightning.executors.stacked.guards.effects import no_effects
from fl_lightning.executors.stacked.randomness import nothing_drawn

_Result = TypeVar("_Result")


class Rehearsal:
    """Runs a module's ``training_step`` on a copy, and sees whether it does more there than to compute.

    Args:
        training: Trains clients.
    """

    def __init__(self, training: LocalTraining) -> None:
        self._training = training
        self._copy: tuple[LocalTraining, WatchedTrainer, StackedLoop, ModuleState] | None = None

    def forget(self) -> None:
        """Take a new copy the next time: the module may be another one now."""
        self._copy = None

    def __call__(self, step: Callable[[StackedLoop, LocalTraining], _Result]) -> tuple[_Result, WatchedTrainer]:
        """Return what the step returns, and the trainer that the copy saw.

        What the step changes outside of the copy is put back, but for iterators and generators.

        Args:
            step: Called with the object that runs the copy's ``training_step``, and with the training of the copy.

        Raises:
            CannotVectorize: If the step changes the module, reads what clients share, prints, logs or writes.
        """
        copy, watched, stacked, state = self._copy or self._made()
        self._copy = None  # unless nothing changes it
        outside, given = Outside(state), ThroughTrainer(watched)
        try:
            with given.looked_at():
                with nothing_drawn(copy.vector.device, torch_may_draw=True), no_effects():
                    result = step(stacked, copy)
                changed = state.changed() or given.changed()
        finally:
            outside.put_back()
        if changed:
            raise CannotVectorize(f"`training_step` changes {changed}, of which there is one for all clients")
        self._copy = copy, watched, stacked, state
        return result, watched

    def _made(self) -> tuple[LocalTraining, WatchedTrainer, StackedLoop, ModuleState]:
        training = self._training
        copy, watched = training.on_a_copy()
        module: Any = copy.vector.module
        return copy, watched, StackedLoop(training.loop, training.corrector, module), ModuleState(copy.vector)
