"""Metric objects of torchmetrics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.aggregation import MaxMetric, RunningMean, SumMetric
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.functional.classification import multiclass_accuracy

from zoo.entry import CLASSES, Entry
from zoo.modules.base import Classifier


class LogsAccuracy(Classifier):
    """Calls the metric and logs the object, as the documentation of torchmetrics does."""

    def prepare(self) -> None:
        self.accuracy = MulticlassAccuracy(CLASSES, average="micro")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        self.accuracy(logits, y)
        self.log("train_acc", self.accuracy, on_step=False, on_epoch=True)
        return F.cross_entropy(logits, y)


class LogsAccuracyEachStep(LogsAccuracy):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        self.accuracy(logits, y)
        self.log("train_acc", self.accuracy, on_step=True, on_epoch=True)
        return F.cross_entropy(logits, y)


class ComputesCollection(Classifier):
    """Updates a collection in the step, logs and resets it when the epoch ends."""

    def prepare(self) -> None:
        metrics = MetricCollection({"acc": MulticlassAccuracy(CLASSES), "f1": MulticlassF1Score(CLASSES)})
        self.train_metrics = metrics.clone(prefix="train_")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        self.train_metrics.update(logits, y)
        return F.cross_entropy(logits, y)

    def on_train_epoch_end(self) -> None:
        self.log_dict(self.train_metrics.compute())
        self.train_metrics.reset()


class LogsCollection(ComputesCollection):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        self.train_metrics.update(logits, y)
        self.log_dict(self.train_metrics, on_step=False, on_epoch=True)
        return F.cross_entropy(logits, y)

    def on_train_epoch_end(self) -> None:
        pass


class MeanLoss(Classifier):
    def prepare(self) -> None:
        self.mean_loss, self.largest, self.samples = MeanMetric(), MaxMetric(), SumMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        self.mean_loss.update(loss.detach(), weight=len(batch[1]))
        self.largest.update(loss.detach())
        self.samples(len(batch[1]))
        self.log("largest", self.largest, on_step=False, on_epoch=True)
        self.log("samples", self.samples, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("mean_loss", self.mean_loss.compute())
        self.mean_loss.reset()


class KeepsPredictions(Classifier):
    """AUROC keeps all predictions in lists; the confusion matrix is a tensor of counts."""

    def prepare(self) -> None:
        self.auroc = MulticlassAUROC(CLASSES)
        self.confusion = MulticlassConfusionMatrix(CLASSES)
        self.table: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        self.auroc.update(logits.softmax(1), y)
        self.confusion.update(logits, y)
        return F.cross_entropy(logits, y)

    def on_train_epoch_end(self) -> None:
        self.log("auroc", self.auroc.compute())
        self.table = self.confusion.compute().tolist()
        self.auroc.reset()
        self.confusion.reset()


class MetricsByStage(Classifier):
    """Metrics in a ModuleDict, the value of each call logged as a number."""

    def prepare(self) -> None:
        self.metrics = nn.ModuleDict({"train_": MulticlassAccuracy(CLASSES), "val_": MulticlassAccuracy(CLASSES)})

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        batch_value = self.metrics["train_"](logits, y)
        self.log("train_acc_batch", batch_value, on_step=False, on_epoch=True)
        return F.cross_entropy(logits, y)

    def on_train_epoch_end(self) -> None:
        self.log("train_acc", self.metrics["train_"].compute())
        self.metrics["train_"].reset()


class FunctionalAccuracy(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        accuracy = multiclass_accuracy(logits, y, CLASSES, average="micro")
        self.log("train_acc", accuracy, on_step=False, on_epoch=True)
        return F.cross_entropy(logits, y)


class MetricInTheLoss(Classifier):
    """Weighs the loss by the running accuracy: what one client did changes what the next one does."""

    def prepare(self) -> None:
        self.accuracy = MulticlassAccuracy(CLASSES, average="micro")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        self.accuracy.update(logits, y)
        return F.cross_entropy(logits, y) * (2 - self.accuracy.compute())

    def on_train_epoch_start(self) -> None:
        self.accuracy.reset()


class CalibrationBins(Classifier):
    """Counts with torch.bincount by hand and logs a rate."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        found = F.one_hot(logits.argmax(1), CLASSES).to(logits.dtype).mean(0)
        self.log_dict({f"share_{k}": found[k] for k in range(CLASSES)}, on_step=False, on_epoch=True)
        self.log("top2", (logits.topk(2).indices == y[:, None]).any(1).to(torch.float64).mean())
        return F.cross_entropy(logits, y)


class Share(Metric):
    """The share of hits in batches that have a sample of class 0, and a moving mean that goes on after a reset."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("hits", torch.tensor(0.0, dtype=torch.float64), "sum")
        self.add_state("seen", torch.tensor(0.0, dtype=torch.float64), "sum")
        self.moving = torch.tensor(0.0, dtype=torch.float64)

    def update(self, logits: Tensor, y: Tensor) -> None:
        hits = (logits.argmax(1) == y).to(torch.float64)
        self.moving = 0.9 * self.moving + 0.1 * hits.mean()
        if (y == 0).any():
            self.hits += hits.sum()
            self.seen += len(y)

    def compute(self) -> Tensor:
        return self.hits / self.seen.clamp(min=1) + self.moving


class OwnMetric(Classifier):
    """A metric of the user's own, whose value of each step is logged."""

    def prepare(self) -> None:
        self.share = Share()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        self.share(logits.detach(), y)
        self.log("share", self.share, on_step=True, on_epoch=True)
        return F.cross_entropy(logits, y)


class RunningLoss(Classifier):
    """A window over the last losses of all clients, and their sum."""

    def prepare(self) -> None:
        self.running, self.batches = RunningMean(window=3), SumMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        self.running.update(loss.detach())
        self.batches.update(1)
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("running", self.running.compute())
        self.log("batches", self.batches.compute())
        self.batches.reset()


class Sampled(Metric):
    """Hits of half of a batch's samples, which are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("hits", torch.tensor(0), "sum")

    def update(self, logits: Tensor, y: Tensor) -> None:
        chosen = torch.randperm(len(y))[: (len(y) + 1) // 2]
        self.hits += (logits.argmax(1) == y)[chosen].sum()

    def compute(self) -> Tensor:
        return self.hits.double()


class SampledMetric(Classifier):
    def prepare(self) -> None:
        self.sampled = Sampled()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        self.sampled.update(logits.detach(), y)
        return F.cross_entropy(logits, y)

    def on_train_epoch_end(self) -> None:
        self.log("sampled", self.sampled.compute())
        self.sampled.reset()


ENTRIES = [
    Entry("accuracy object logged", LogsAccuracy),
    Entry("accuracy object logged each step", LogsAccuracyEachStep, long=True),
    Entry("collection computed at the epoch's end", ComputesCollection),
    Entry("collection logged", LogsCollection, long=True),
    Entry("MeanMetric of the loss", MeanLoss),
    Entry("AUROC and confusion matrix", KeepsPredictions),
    Entry("metrics in a ModuleDict", MetricsByStage, long=True),
    Entry("functional accuracy", FunctionalAccuracy, long=True),
    Entry("running metric in the loss", MetricInTheLoss),
    Entry("one_hot, topk, several logs", CalibrationBins),
    Entry("own metric logged each step", OwnMetric),
    Entry("running mean of the loss", RunningLoss, long=True),
    Entry("metric that draws samples", SampledMetric, long=True),
]
