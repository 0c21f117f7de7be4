"""Training steps that look at counters of the trainer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from zoo.entry import Entry
from zoo.modules.base import Classifier


class ByGlobalStep(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return super().loss(batch, batch_idx) * (1 + 0.1 * self.global_step)


class LogsByGlobalStep(Classifier):
    """Logs something each fifth step, as many do."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        if self.global_step % 5 == 0:
            self.log("norm", self.layers[0].weight.detach().norm(), on_step=False, on_epoch=True)
        return loss


class ByTrainersStep(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return super().loss(batch, batch_idx) * math.exp(-0.1 * self.trainer.global_step)


class ByBatchIndex(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return super().loss(batch, batch_idx) / (1 + batch_idx)


class ByEpoch(Classifier):
    """Anneals a penalty by the epoch."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        penalty = sum(p.square().sum() for p in self.layers.parameters())
        return super().loss(batch, batch_idx) + min(1.0, self.current_epoch / 10) * penalty


class ByNumberOfBatches(Classifier):
    """Weighs a KL-like term by the number of batches, as Bayesian networks do."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        penalty = sum(p.square().sum() for p in self.layers.parameters())
        return super().loss(batch, batch_idx) + penalty / self.trainer.num_training_batches


class ByProgress(Classifier):
    """The schedule of domain-adversarial training."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        done = (batch_idx + self.current_epoch * self.trainer.num_training_batches) / (
            self.trainer.max_epochs * self.trainer.num_training_batches
        )
        return super().loss(batch, batch_idx) * (2 / (1 + math.exp(-10 * done)) - 1)


class ByLastBatch(Classifier):
    """Reads what was logged before."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss * (1 + 0.1 * float(self.trainer.callback_metrics.get("train_loss", torch.zeros(()))))


class OwnCounter(Classifier):
    """Counts its steps in an attribute."""

    def prepare(self) -> None:
        self.steps = 0

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        self.steps += 1
        return super().loss(batch, batch_idx) * (1 + 0.01 * self.steps)


class CountsEpochs(Classifier):
    def prepare(self) -> None:
        self.epochs_seen = 0

    def on_train_epoch_start(self) -> None:
        self.epochs_seen += 1

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return super().loss(batch, batch_idx) / self.epochs_seen


ENTRIES = [
    Entry("global_step in the loss", ByGlobalStep),
    Entry("logs each fifth global_step", LogsByGlobalStep),
    Entry("trainer.global_step in the loss", ByTrainersStep),
    Entry("batch_idx in the loss", ByBatchIndex),
    Entry("batch_idx, two local epochs", ByBatchIndex, federated={"local_epochs": 2}),
    Entry("batch_idx with accumulation", ByBatchIndex, trainer={"accumulate_grad_batches": 2}),
    Entry("current_epoch in the loss", ByEpoch),
    Entry("num_training_batches in the loss", ByNumberOfBatches),
    Entry("progress in the loss", ByProgress),
    Entry("callback_metrics in the loss", ByLastBatch),
    Entry("own counter in the loss", OwnCounter),
    Entry("counts epochs", CountsEpochs),
]
