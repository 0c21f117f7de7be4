"""A trial of convolutions with channels last in memory."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from fl_lightning._lightning.stacked_loop import StackedLoop
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.memory_format import channels_last
from fl_lightning.executors.stacked.causes import log_why
from fl_lightning.executors.stacked.changes.module_state import ModuleState
from fl_lightning.executors.stacked.guards.effects import no_effects
from fl_lightning.executors.stacked.trials.trial import copy_of
from fl_lightning.parts.messages import Task
from fl_lightning.seeding import preserved_generators

log = logging.getLogger(__name__)


class LayoutTrial:
    """Tries a step out on a copy of the module; to be made before the first client trains.

    Args:
        training: Trains clients.
    """

    def __init__(self, training: LocalTraining) -> None:
        self._training = training
        modules = training.vector.module.modules()
        convolves = any(isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) for module in modules)
        self._state = ModuleState(training.vector) if convolves else None

    def works(self, task: Task) -> bool:
        """Whether there are convolutions, and a step of the task's client runs with their channels last.

        Not where training changes attributes or globals: a step on a copy could change what the module shares.
        """
        if self._state is None or self._state.changed():
            return False
        try:
            copy, _ = copy_of(self._training)
            module: Any = copy.vector.module
            stacked = StackedLoop(self._training.loop, self._training.corrector, module)
            with no_effects(), preserved_generators(copy.vector.device), channels_last(module) as changed:
                if not changed:
                    return False
                self._training.seed(task)
                batch = stacked.transfer(next(self._training.batches.iterate(task)))
                with stacked.recording(), torch.enable_grad():
                    loss = stacked.training_step(batch, 0)
                torch.autograd.grad(loss, copy.vector.parameters, allow_unused=True)
        except Exception as error:  # a `view` across channels, say; the module may well work as it is
            log_why(log, "The module cannot be trained with channels last", error)
            return False
        return True
