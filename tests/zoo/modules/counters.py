"""Training steps that look at counters of the trainer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from zoo.entry import Entry
from zoo.modules.base import Classifier, changed, squares


def progress(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    """The schedule of domain-adversarial training."""
    batches = module.trainer.num_training_batches
    done = (index + module.current_epoch * batches) / (module.trainer.max_epochs * batches)
    return loss * (2 / (1 + math.exp(-10 * done)) - 1)


class ByLastBatch(Classifier):
    """Reads what was logged before."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss * (1 + 0.1 * float(self.trainer.callback_metrics.get("train_loss", torch.zeros(()))))


class ByLastRound(Classifier):
    """Reads when a round begins what was logged before."""

    def on_train_epoch_start(self) -> None:
        self.last = float(self.trainer.callback_metrics.get("train_loss", 0.0))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return super().loss(batch, batch_idx) * (1 + 0.1 * self.last)


def by_index(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    return loss / (1 + index)


SHARED = "reads what clients share"
ENTRIES = [
    changed("global_step in the loss", lambda m, loss, b, i: loss * (1 + 0.1 * m.global_step), alone=SHARED),
    changed("trainer.global_step", lambda m, loss, b, i: loss * 0.9**m.trainer.global_step, long=True, alone=SHARED),
    changed("batch_idx in the loss", by_index, long=True),
    changed("batch_idx, two local epochs", by_index, federated={"local_epochs": 2}),
    changed("batch_idx with accumulation", by_index, trainer={"accumulate_grad_batches": 2}, long=True),
    changed("current_epoch in the loss", lambda m, loss, b, i: loss + m.current_epoch / 10 * squares(m), long=True),
    changed("num_training_batches", lambda m, loss, b, i: loss + squares(m) / m.trainer.num_training_batches),
    changed("progress in the loss", progress, long=True),
    Entry("callback_metrics in the loss", ByLastBatch, alone=SHARED, long=True),
    Entry("callback_metrics read once a round", ByLastRound, trainer={"max_epochs": 3}),
]
