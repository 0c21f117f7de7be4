"""Metric objects of torchmetrics."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.aggregation import MaxMetric, RunningSum, SumMetric
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassF1Score,
)

from zoo.entry import CLASSES, Entry
from zoo.modules.base import Classifier


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
    """Logs the collection itself."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log_dict(self.train_metrics, on_step=False, on_epoch=True)
        return loss

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


class Gives(Classifier):
    """Gives a metric object something in each step, and logs its value when the round ends, or by ``logs`` itself."""

    def __init__(self, metric: Metric, give: Callable[[Any, Tensor, Tensor, Tensor, int], Any], logs: bool) -> None:
        super().__init__()
        self.metric, self.give, self.logs = metric, give, logs

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        logits = self(batch[0])
        loss = F.cross_entropy(logits, batch[1])
        weight = self.give(self, logits.detach(), batch[1], loss, batch_idx)
        return loss if weight is None else loss * weight

    def on_train_epoch_end(self) -> None:
        if not self.logs:
            self.log("value", self.metric.compute())
            self.metric.reset()


def gives(name: str, metric: Any, give: Callable[..., Any], logs: bool = False) -> Entry:
    return Entry(name, lambda: Gives(metric(), give, logs))


class Summed(Metric):
    """A sum over batches of what ``of_batch(metric, what is given)`` returns."""

    full_state_update = False

    def __init__(self, of_batch: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0, dtype=torch.float64), "sum")
        self.calls, self.of_batch, self.sizes = 0, of_batch, list[int]()

    def update(self, given: Any) -> None:
        self.calls += 1
        self.sizes.append(len(given) if isinstance(given, Tensor) and given.ndim else 1)
        self.total += self.of_batch(self, given)

    def compute(self) -> Any:
        return self.total + 0.001 * len(self.sizes)


def summed(of_batch: Callable[[Any, Any], Any]) -> Callable[[], Metric]:
    return lambda: Summed(of_batch)


class Moving(Metric):
    """Half of what was before, and the batch's mean, in an attribute and in an object."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.mean = SimpleNamespace(value=0.0), torch.tensor(0.0, dtype=torch.float64)

    def update(self, y: Tensor) -> None:
        value = y.double().mean()
        self.mean, self.held.value = 0.5 * self.mean + value, 0.5 * self.held.value + value

    def compute(self) -> Tensor:
        return self.mean + self.held.value

    def reset(self) -> None:
        pass


def hooked() -> Metric:
    metric = SumMetric()
    metric.register_forward_hook(lambda *arguments: None)
    return metric


def update(module: Any, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> None:
    module.metric.update(y)


def call_and_log(module: Any, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> None:
    module.metric(y)
    module.log("value", module.metric, on_step=True, on_epoch=True)


def log_then_call(module: Any, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> None:
    if index:
        module.log("value", module.metric, on_step=True, on_epoch=True)
    module.metric(y)


def change_afterwards(module: Any, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> None:
    own = y.clone()
    module.metric.update(own)
    own += (own == 2).long()


def log_state(module: Any, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> None:
    module.metric.update(y)
    module.log("seen", module.metric.total)


def count_updates(module: Any, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> float:
    module.metric.update(y)
    return 0.5 if module.metric.update_count == 7 else 1.0


def scores(module: Any, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> None:
    module.metric.update(logits.softmax(1), y)


def weigh_by_value(module: Any, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> Tensor:
    """Weighs the loss by the running value: what one client did changes what the next one does."""
    module.metric.update(logits, y)
    return 2 - module.metric.compute()


def call(weigh: Callable[[Any, Tensor], Any]) -> Callable[..., Any]:
    """Return what calls an accuracy and weighs the loss by what it returns."""

    def give(module: Any, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> Any:
        accuracy = module.metric(logits, y)
        module.log("accuracy", accuracy)
        return weigh(accuracy, loss)

    return give


class NewMetric(Classifier):
    """Has a new metric object in each round."""

    def on_train_epoch_start(self) -> None:
        self.accuracy = accuracy()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        logits = self(batch[0])
        self.accuracy(logits, batch[1])
        return F.cross_entropy(logits, batch[1])

    def on_train_epoch_end(self) -> None:
        self.log("accuracy", self.accuracy.compute())


def accuracy() -> Metric:
    return MulticlassAccuracy(CLASSES, average="micro")


def of_classes(values: Callable[[Tensor], Tensor]) -> Callable[..., None]:
    """Return what gives values of classes, not of samples: some batches have fewer samples than there are classes."""
    return lambda module, logits, y, loss, index: module.metric.update(values(logits.softmax(1)))


ENTRIES = [
    Entry("collection computed at the epoch's end", ComputesCollection),
    gives("running metric in the loss", accuracy, weigh_by_value),
    Entry("collection logged", LogsCollection),
    Entry("new metric object in each round", NewMetric),
    gives("value used in the loss", accuracy, call(lambda accuracy, loss: 2 - accuracy)),
    gives("batches with class 0", summed(lambda m, y: len(y) if (y == 0).any() else 0), update),
    gives("numbers of calls", summed(lambda m, y: m.calls), call_and_log, logs=True),
    gives("logged before it is called", SumMetric, log_then_call, logs=True),
    gives("sum without values of steps", lambda: RunningSum(window=3), call_and_log, logs=True),
    gives("number of a tensor", summed(lambda m, y: y), lambda m, logits, y, *_: m.metric.update(y[0].item())),
    gives("batches counted", SumMetric, lambda m, *_: m.metric.update(1)),
    gives("changed afterwards", SumMetric, change_afterwards),
    gives("AUROC with thresholds", lambda: MulticlassAUROC(CLASSES, thresholds=5), scores),
    gives("moving mean in a tensor", Moving, update),
    gives("sums of classes", SumMetric, of_classes(lambda p: p.sum(0))),
    gives("draws from the third call on", summed(lambda m, y: torch.rand(()) if m.calls > 2 else 0), update),
]
LONG = [
    Entry("MeanMetric of the loss", MeanLoss),
    gives("AUROC of lists", lambda: MulticlassAUROC(CLASSES), scores),
    gives("loss with its graph", MeanMetric, lambda m, logits, y, loss, index: m.metric.update(loss)),
    gives("value by item", accuracy, call(lambda value, loss: 2 - value.item())),
    gives("classes first", SumMetric, of_classes(lambda p: p.t())),
    gives(
        "metric of weights",
        summed(lambda m, net: net[0].weight.detach().square().sum()),
        lambda m, *_: m.metric.update(m.layers),
    ),
    gives("state logged", summed(lambda m, y: len(y)), log_state),
    gives("updates counted", summed(lambda m, y: len(y)), count_updates),
    gives("metric with a hook", hooked, call_and_log, logs=True),
]
