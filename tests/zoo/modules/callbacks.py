"""Callbacks: Lightning's own, small changes of them, and such that look at clients or set something for them."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, TQDMProgressBar
from torch import Tensor
from torch.nn import functional as F

from zoo.entry import Entry
from zoo.modules.base import Classifier
from zoo.modules.logging import LogsEachStep
from zoo.modules.optimizers import LogsLearningRate


class OwnBar(TQDMProgressBar):
    """Overrides nothing."""


class ReadsEpochs(Callback):
    """Notes the loss of each round."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        pl_module.history = [*getattr(pl_module, "history", []), float(trainer.callback_metrics["train_loss"])]


class ReadsBatches(Callback):
    """Adds up the losses of batches."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pl_module.summed_loss = getattr(pl_module, "summed_loss", 0.0) + float(outputs["loss"])


class StopsWhenGood(Callback):
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.callback_metrics["train_loss"] < 1.11:
            trainer.should_stop = True


class NotesClients(Callback):
    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        pl_module.started = [*getattr(pl_module, "started", []), client.task.client]

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        norm = float(sum(p.detach().square().sum() for p in pl_module.parameters()))
        pl_module.norms = [*getattr(pl_module, "norms", []), norm]


class OwnLearningRate(Callback):
    """Gives each client a learning rate of its own."""

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = 0.02 * (1 + client.task.client)


class OwnTemperature(Callback):
    """Sets an attribute of the module for each client."""

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        pl_module.temperature = 1.0 + client.task.client


class OwnHead(Callback):
    """Starts each client from a head of its own, written into the module."""

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        with torch.no_grad():
            pl_module.layers[2].bias.fill_(0.1 * client.task.client)


class Tempered(Classifier):
    temperature: Any = 1.0

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x) / self.temperature, y)


def stopping() -> list[Callback]:
    return [EarlyStopping("train_loss", patience=2, check_on_train_epoch_end=True)]


BAR = {"enable_progress_bar": True}

ENTRIES = [
    Entry("subclass of a progress bar", Classifier, callbacks=lambda: [OwnBar(refresh_rate=0)], trainer=BAR, long=True),
    Entry("EarlyStopping on a step value", LogsEachStep, callbacks=stopping, trainer={"max_epochs": 8}),
    Entry("EarlyStopping on an epoch value", Classifier, callbacks=stopping, trainer={"max_epochs": 8}, long=True),
    Entry(
        "LearningRateMonitor by step",
        LogsLearningRate,
        callbacks=lambda: [LearningRateMonitor("step")],
        not_by_hand=("lr-",),
        alone="logs the learning rate",
        long=True,
    ),
    Entry(
        "LearningRateMonitor by epoch",
        Classifier,
        callbacks=lambda: [LearningRateMonitor("epoch")],
        not_by_hand=("lr-",),
        long=True,
    ),
    Entry("reads epoch values", Classifier, callbacks=lambda: [ReadsEpochs()], long=True),
    Entry("reads the outputs of batches", Classifier, callbacks=lambda: [ReadsBatches()], alone="hooks of batches"),
    Entry("stops when good", Classifier, callbacks=lambda: [StopsWhenGood()], trainer={"max_epochs": 8}, long=True),
    Entry(
        "notes clients and their models",
        Classifier,
        callbacks=lambda: [NotesClients()],
        alone="sets what clients share",
    ),
    Entry("own learning rate for each client", Classifier, callbacks=lambda: [OwnLearningRate()]),
    Entry(
        "own attribute for each client",
        Tempered,
        callbacks=lambda: [OwnTemperature()],
        alone="sets what clients share",
        long=True,
    ),
    Entry("own head for each client", Classifier, callbacks=lambda: [OwnHead()], long=True),
]
