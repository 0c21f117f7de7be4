"""A way through ``training_step`` that no trial has seen: where Python decides by values, it may come at any time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.stacked_loop import StackedLoop
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.batching import UnknownIndex
from fl_lightning.executors.stacked.decisions import Tried
from fl_lightning.executors.stacked.guards.nothing_kept import nothing_kept
from fl_lightning.executors.stacked.step_runners import Example, TriedWay
from fl_lightning.executors.stacked.trials.precise import StepTrial
from fl_lightning.executors.stacked.trials.rehearsal import Rehearsal
from fl_lightning.seeding import preserved_generators

_MIXED = 5e-2


class WayTrial:
    """Takes one step of a client that takes the way, on a copy, alone and mapped, and compares.

    Args:
        rehearsal: Has a copy of the module, and sees whether a step does more than to compute.
    """

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._rehearsal = rehearsal

    def __call__(self, example: Example, draws: bool) -> TriedWay:
        """Return what the step did.

        Args:
            example: The client.
            draws: Whether the module draws random numbers.

        Raises:
            CannotVectorize: If anything differs, or if the step does more than to compute.
        """

        def compare(stacked: StackedLoop, copy: LocalTraining) -> Tried:
            tolerance = _MIXED if "mixed" in str(copy.trainer.precision_plugin.precision) else None
            trial = StepTrial(copy, copy.vector, stacked, draws=draws, tolerance=tolerance)
            with _undone(copy):
                trial.compare([example])
            return trial.tried

        def uses_index(stacked: StackedLoop, copy: LocalTraining) -> bool:
            with _undone(copy):
                return _uses_index(stacked, copy, example)

        tried, watched = self._rehearsal(compare)
        if watched.reads_round or watched.reads_rates:
            raise CannotVectorize("`training_step` reads something of the trainer for some values of tensors")
        return TriedWay(tried, self._rehearsal(uses_index)[0])


@contextmanager
def _undone(copy: LocalTraining) -> Iterator[None]:
    """Put weights and global generators back."""
    held = copy.vector.read()
    with preserved_generators(copy.vector.device), nothing_kept():
        yield
    copy.vector.write(held)


def _uses_index(stacked: StackedLoop, copy: LocalTraining, example: Example) -> bool:
    """Whether a client's step uses ``batch_idx``: what it does may be another thing in its next batches."""
    copy.vector.write(example.model)
    example.seed()
    try:
        with stacked.recording(), torch.enable_grad():
            stacked.training_step(example.batch, UnknownIndex.given())
    except Exception:  # the same step has just been taken with its index
        return True
    return False
