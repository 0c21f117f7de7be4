"""Training steps that look at counters of the trainer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.entry import Entry, one_by_one
from zoo.modules.base import Classifier, changed, squares


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


ENTRIES = [
    changed("batch_idx, two local epochs", by_index, federated={"local_epochs": 2}),
    changed("num_training_batches", lambda m, loss, b, i: loss + squares(m) / m.trainer.num_training_batches),
    Entry("callback_metrics read once a round", ByLastRound, trainer={"max_epochs": 3}, long=True),
    changed("global_step in the loss", lambda m, loss, b, i: loss * (1 + 0.1 * m.global_step)),
]
LONG = [
    changed("batch_idx with accumulation", by_index, trainer={"accumulate_grad_batches": 2}),
    changed("current_epoch in the loss", lambda m, loss, b, i: loss + m.current_epoch / 10 * squares(m)),
    *one_by_one(Entry("callback_metrics in the loss", ByLastBatch)),
]
