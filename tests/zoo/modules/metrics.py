"""Metric objects of torchmetrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MeanAbsoluteError, MeanMetric, MeanSquaredError, Metric, MetricCollection
from torchmetrics.aggregation import MaxMetric, RunningSum, SumMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score

from zoo.entry import CLASSES, UNEQUAL, Entry, one_by_one
from zoo.modules.base import Classifier


class ComputesCollection(Classifier):
    """Updates a collection in the step, logs and resets it when the epoch ends."""

    def prepare(self) -> None:
        metrics = MetricCollection({"acc": MulticlassAccuracy(CLASSES), "f1": MulticlassF1Score(CLASSES)})
        self.train_metrics = metrics.clone(prefix="train_")

    def training_step(self, batch: Any) -> Tensor:  # type: ignore[override]
        x, y = batch
        logits = self(x)
        self.train_metrics.update(logits, y)
        return F.cross_entropy(logits, y)

    def on_train_epoch_end(self) -> None:
        self.log_dict(self.train_metrics.compute())
        self.train_metrics.reset()


class LogsCollection(ComputesCollection):
    """Logs the collection itself."""

    def training_step(self, batch: Any) -> Tensor:  # type: ignore[override]
        loss = super().training_step(batch)
        self.log_dict(self.train_metrics, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self) -> None:
        pass


class Use(NamedTuple):
    """How a metric object is used: ``give(module, metric, scores, classes, loss, batch_idx)`` is called in each step.

    What it returns weighs the loss. Where it does not log, the metric's value is logged when the round ends.
    """

    metric: Callable[[], Metric]
    give: Callable[..., Any]
    logs: bool = False


class Gives(Classifier):
    """Uses metric objects."""

    def __init__(self, uses: Sequence[Use]) -> None:
        super().__init__()
        self.uses = {f"metric_{number}": use for number, use in enumerate(uses)}
        for name, use in self.uses.items():
            setattr(self, name, use.metric())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        logits = self(batch[0])
        loss = F.cross_entropy(logits, batch[1])
        weighted = loss
        for name, use in self.uses.items():
            weight = use.give(self, getattr(self, name), logits.detach(), batch[1], loss, batch_idx)
            if weight is not None:
                weighted = weighted * weight
        return weighted

    def on_train_epoch_end(self) -> None:
        for name, use in self.uses.items():
            if not use.logs:
                metric = getattr(self, name)
                values = torch.as_tensor(metric.compute()).flatten()
                self.log(name, (values * torch.arange(1, len(values) + 1)).mean() + 0.001 * metric.update_count)
                metric.reset()


def gives(name: str, metric: Any, give: Callable[..., Any], logs: bool = False) -> Entry:
    return all_of(name, Use(metric, give, logs))


def all_of(name: str, *uses: Use, **options: Any) -> Entry:
    return Entry(name, lambda: Gives(uses), sizes=UNEQUAL, **options)


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


def updates(values: Callable[[Tensor, Tensor, Tensor], Any]) -> Callable[..., None]:
    """Return what gives values of scores, classes and the loss."""
    return lambda module, metric, logits, y, loss, index: metric.update(*values(logits.detach(), y, loss))


update = updates(lambda p, y, loss: [y])
scores = updates(lambda p, y, loss: [p.softmax(1), y])
#: Some batches have fewer samples than there are classes.
of_classes = updates(lambda p, y, loss: [p.softmax(1).sum(0)])


def call_and_log(name: str) -> Callable[..., None]:
    """Return what calls a metric object and logs it by a name."""

    def give(module: Any, metric: Metric, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> None:
        metric(y)
        module.log(name, metric, on_step=True, on_epoch=True)

    return give


def log_then_call(module: Any, metric: Metric, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> None:
    if index:
        module.log("before", metric, on_step=True, on_epoch=True)
    metric(y)


def change_afterwards(module: Any, metric: Any, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> None:
    own = y.clone()
    print("gives")
    metric.update(own)
    own += (own == 2).long()


def log_state(module: Any, metric: Any, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> None:
    metric.update(y)
    module.log("seen", metric.total)


def count_updates(module: Any, metric: Any, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> float:
    metric.update(y)
    return 0.5 if metric.update_count == 7 else 1.0


def weigh_by_value(module: Any, metric: Any, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> Tensor:
    """Weighs the loss by the running value: what one client did changes what the next one does."""
    metric.update(logits, y)
    return 2 - metric.compute()


def call(weigh: Callable[[Any, Tensor], Any]) -> Callable[..., Any]:
    """Return what calls an accuracy and weighs the loss by what it returns."""

    def give(module: Any, metric: Any, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> Any:
        accuracy = metric(logits, y)
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


def by_name_and_by_place(module: Any, metric: Any, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> None:
    metric.update(target=y, preds=logits.argmax(1))
    metric.update(logits.argmax(1), y)


def call_all(module: Any, metric: Any, logits: Tensor, y: Tensor, loss: Tensor, index: int) -> None:
    module.log_dict(metric(logits, y), on_step=True, on_epoch=True)


#: Metric objects of batches.
OF_BATCHES = {
    "batches with class 0": Use(summed(lambda m, y: len(y) if (y == 0).any() else 0), update),
    "numbers of calls": Use(summed(lambda m, y: m.calls), call_and_log("calls"), logs=True),
    "logged before it is called": Use(SumMetric, log_then_call, logs=True),
    "sum without values of steps": Use(lambda: RunningSum(window=3), call_and_log("running"), logs=True),
    "number of a tensor": Use(summed(lambda m, y: y), updates(lambda p, y, loss: [y[0].item()])),
    "value of a step": Use(accuracy, call(lambda accuracy, loss: None)),
    "values of a collection": Use(lambda: MetricCollection([accuracy(), MulticlassF1Score(3)]), call_all, logs=True),
    "by name and by place": Use(lambda: MulticlassAccuracy(CLASSES), by_name_and_by_place),
    # A batch has one class of three, where two may be.
    "too many classes": Use(
        lambda: MulticlassAccuracy(2, 1, "micro"), updates(lambda p, y, loss: 2 * [(0 * y + y.sum()) % 3])
    ),
    "of each sample": Use(
        lambda: MulticlassAccuracy(3, 1, "micro", "samplewise"), updates(lambda p, y, loss: [p[:, :, None], y[:, None]])
    ),
    "batches of widths": Use(MeanSquaredError, updates(lambda p, y, loss: [p.view(1, -1), 0 * p.view(1, -1)])),
    "mean of batches": Use(MeanMetric, lambda m, metric, p, y, loss, *_: metric.update(loss.detach(), weight=len(y))),
    "largest of batches": Use(MaxMetric, updates(lambda p, y, loss: [loss.detach()])),
    "numbers of batches": Use(MeanAbsoluteError, updates(lambda p, y, loss: [loss.detach(), 0 * loss.detach()])),
    "changed afterwards": Use(SumMetric, change_afterwards),
}
#: Metric objects that keep or are given something else than sums over samples.
OTHERS = {
    "moving mean in a tensor": Use(Moving, update),
    "sums of classes": Use(SumMetric, of_classes),
    "draws from the third call on": Use(summed(lambda m, y: torch.rand(()) if m.calls > 2 else 0), update),
}
ENTRIES = [
    Entry("collection logged", LogsCollection),
    Entry("new metric object in each round", NewMetric, long=True),
    all_of("metric objects of batches", *OF_BATCHES.values()),
    all_of("metric objects that keep something else", *OTHERS.values(), trainer={"precision": "64-true"}),
    all_of("batches and samples", Use(SumMetric, updates(lambda *_: [1])), Use(accuracy, scores)),
    gives("AUROC with thresholds", lambda: MulticlassAUROC(CLASSES, thresholds=5), scores),
    *one_by_one(
        gives("running metric in the loss", accuracy, weigh_by_value),
        gives("value used in the loss", accuracy, call(lambda accuracy, loss: 2 - accuracy)),
    ),
]
LONG = [
    *(all_of(name, use) for name, use in {**OF_BATCHES, **OTHERS}.items()),
    Entry("collection computed at the epoch's end", ComputesCollection),
    gives("AUROC of lists", lambda: MulticlassAUROC(CLASSES), scores),
    gives("loss with its graph", MeanMetric, updates(lambda p, y, loss: [loss])),
    gives("classes first", SumMetric, updates(lambda p, y, loss: [p.softmax(1).t()])),
    *one_by_one(
        gives("value by item", accuracy, call(lambda value, loss: 2 - value.item())),
        gives(
            "metric of weights",
            summed(lambda m, net: net[0].weight.detach().square().sum()),
            lambda m, metric, *_: metric.update(m.layers),
        ),
        gives("state logged", summed(lambda m, y: len(y)), log_state),
        gives("updates counted", summed(lambda m, y: len(y)), count_updates),
        gives("metric with a hook", hooked, call_and_log("value"), logs=True),
    ),
]
