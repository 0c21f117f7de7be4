"""A trial of convolutions with channels last in memory."""

from __future__ import annotations

import logging

from torch import nn

from fl_lightning.clients.training import ClientAtWork, LocalTraining
from fl_lightning.executors.memory_format import channels_last
from fl_lightning.parts.messages import Task
from fl_lightning.seeding import preserved_generators

log = logging.getLogger(__name__)


def works_with_channels_last(training: LocalTraining, task: Task) -> bool:
    """Whether there are convolutions, and one of the client's batches has a gradient with their channels last."""
    module, vector = training.vector.module, training.vector
    if not any(isinstance(part, (nn.Conv2d, nn.ConvTranspose2d)) for part in module.modules()):
        return False
    client = ClientAtWork(task, vector.read(), training)
    try:
        with preserved_generators(vector.device), channels_last(module) as changed:
            next(client.gradients())
    except Exception:  # a `view` across channels, say; the module may well work as it is
        log.debug("The module cannot be trained with channels last", exc_info=True)
        return False
    return changed
