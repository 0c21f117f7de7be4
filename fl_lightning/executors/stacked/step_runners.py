"""The two ways in which a training step runs on a stack, and the rehearsal of batches that are new."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from fl_lightning._lightning.stacked_loop import StackedLoop
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.batching import StackedBatch
from fl_lightning.executors.stacked.mapped import MappedStep
from fl_lightning.executors.stacked.program.maker import ProgramMaker
from fl_lightning.executors.stacked.trials.rehearsal import Rehearsal


@dataclass
class StepRunners:
    """How a fit's ``training_step`` runs on stacks.

    Attributes:
        stacked: Runs it.
        mapped: Runs it by ``torch.func``, for any module.
        programs: Makes it a program of batched products, for some modules.
        rehearsal: Tries batches of new forms on a copy; ``None`` on a copy.
        seen: The forms of batches that mapped steps have had.
    """

    stacked: StackedLoop
    mapped: MappedStep
    programs: ProgramMaker
    rehearsal: Rehearsal | None
    seen: set[Any] = field(default_factory=set)

    def forget(self) -> None:
        """Try all forms anew: the module may be another one now."""
        self.seen.clear()
        self.programs.forget()
        if self.rehearsal is not None:
            self.rehearsal.forget()

    def try_out(self, batch: StackedBatch, index: int) -> None:
        """Take a step on a copy, if batches of this form are new.

        Raises:
            CannotVectorize: If the step has side effects.
        """
        key = batch.kind(), *((tensor.shape[1:], tensor.dtype) for tensor in batch.tensors)
        if self.rehearsal is None or key in self.seen:
            return
        first = batch.rebuild([tensor[0] for tensor in batch.tensors])

        def step(stacked: StackedLoop, vector: StateVector) -> None:
            with stacked.recording(), torch.enable_grad():
                stacked.training_step(first, index)

        self.rehearsal(step)
        self.seen.add(key)


def make_step_runners(
    training: LocalTraining, vector: StateVector, stacked: StackedLoop, rehearsal: Rehearsal | None
) -> StepRunners:
    """Return how ``training_step`` runs on stacks.

    Args:
        training: Trains clients.
        vector: The federated state of the module, or of its copy.
        stacked: Runs its ``training_step``.
        rehearsal: Tries batches of new forms on a copy; ``None`` on a copy, where a trial maps even a stack of one.
    """
    precision = str(training.trainer.precision_plugin.precision)
    mapped = MappedStep(stacked, vector, always_maps=rehearsal is None)
    return StepRunners(stacked, mapped, ProgramMaker(stacked, vector, precision, rehearsal), rehearsal)
