"""Fits with validation, schedules that monitor it, and settings that change from round to round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning import FedAvg
from zoo.entry import CLASSES, Data, Entry, vectors
from zoo.modules.base import Classifier, perceptron


class Validated(Classifier):
    """Lightning's introduction: a loss for training, a loss and an accuracy for validation."""

    def __init__(self) -> None:
        super().__init__(perceptron(nn.Dropout(0.2)))
        self.val_acc = MulticlassAccuracy(CLASSES)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        logits = self(x)
        self.val_acc(logits, y)
        self.log("val_loss", F.cross_entropy(logits, y), prog_bar=True)
        self.log("val_acc", self.val_acc, on_epoch=True)


class Plateau(Validated):
    """Lowers the learning rate when the validation loss stops to fall."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=0.1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


class PlateauOfStep(Classifier):
    """The same for the value that the round's last step logged."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "loss"}}


class SameModelInBoth(Validated):
    """Keeps what validation found and uses it in training."""

    def prepare(self) -> None:
        self.scale = 1.0

    def on_validation_epoch_end(self) -> None:
        self.scale = 1 + float(self.trainer.callback_metrics["val_loss"])

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return super().loss(batch, batch_idx) / self.scale


class GrowingBatches(Callback):
    """Doubles the batch size after the first round."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.datamodule.batch_size = 8


class LongerClients(Callback):
    """More local epochs in later rounds."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        [aggregation] = [callback for callback in trainer.callbacks if isinstance(callback, FedAvg)]
        aggregation.local_epochs = 1 + trainer.current_epoch


class ByAdam(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def diverging(sizes: Sequence[int], dtype: torch.dtype) -> Data:
    """Return clients of which one has inputs that no model survives."""
    data = vectors(sizes, dtype)
    data.clients[4][0].mul_(float("inf"))
    return data


THREE = {"max_epochs": 3}


def entry(name: str, module: Any, *callbacks: Any, **options: Any) -> Entry:
    return Entry(
        name, module, callbacks=lambda: [make() for make in callbacks], trainer=THREE, by_hand=False, **options
    )


ENTRIES = [
    entry("validated, with dropout", Validated, validates=True),
    entry("local epochs grow", Classifier, LongerClients),
    Entry("one client diverges, clipped, Adam", ByAdam, diverging, trainer={"gradient_clip_val": 0.1}),
]
LONG = [
    entry("validation's result in training", SameModelInBoth, validates=True),
    entry("ReduceLROnPlateau on validation", Plateau, validates=True),
    entry("ReduceLROnPlateau on a step value", PlateauOfStep),
    entry("GradientAccumulationScheduler", Classifier, lambda: GradientAccumulationScheduler({0: 1, 1: 2, 2: 3})),
    entry("batch size grows", Classifier, GrowingBatches),
    Entry("one client diverges", Classifier, diverging),
]
