"""Modules that keep something outside of their parameters and buffers."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict, deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.entry import Entry
from zoo.modules import settings
from zoo.modules.base import Classifier

SEEN: Counter[int] = Counter()
HISTORY: list[float] = []


class AverageMeter:
    """The meter of PyTorch's ImageNet example."""

    def __init__(self) -> None:
        self.val: Any = 0
        self.sum: Any = 0
        self.count = 0

    def update(self, val: Any, n: int = 1) -> None:
        self.val = val
        self.sum += val * n
        self.count += n


class Slotted:
    """Keeps a number without a dictionary."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0.0


class Keeps(Classifier):
    """Keeps something of each batch."""

    def prepare(self) -> None:
        self.kept: Any = self.empty()

    def empty(self) -> Any:
        return []

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        self.kept.append(len(y))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.keep(x, y, loss)
        return loss


class InList(Keeps):
    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        self.kept.append(loss.detach())


class InDeque(Keeps):
    def empty(self) -> Any:
        return deque(maxlen=5)


class InCounter(Keeps):
    def empty(self) -> Any:
        return Counter()

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        self.kept.update(y.tolist())


class InDefaultDict(Keeps):
    def empty(self) -> Any:
        return defaultdict(int)

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        self.kept["batches"] += 1


class InMeter(Keeps):
    def empty(self) -> Any:
        return AverageMeter()

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        self.kept.update(loss.detach(), len(y))


class InMeterByItem(InMeter):
    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        self.kept.update(loss.item(), len(y))


class InArray(Keeps):
    def empty(self) -> Any:
        return np.zeros(2)

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        self.kept[0] += len(y)


class InTensor(Keeps):
    """A tensor that is no buffer."""

    def empty(self) -> Any:
        return torch.zeros(2)

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        self.kept[0] += len(y)


class InNamespace(Keeps):
    def empty(self) -> Any:
        return SimpleNamespace(samples=0)

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        self.kept.samples += len(y)


class InSlots(Keeps):
    def empty(self) -> Any:
        return Slotted()

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        self.kept.total += len(y)


class InSet(Keeps):
    def empty(self) -> Any:
        return set()

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        self.kept.add(len(y))


class InAttribute(Keeps):
    """Replaces an attribute in each step."""

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        self.kept = len(y)


class LastOutputs(Keeps):
    """Keeps the last batch's logits for a picture."""

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        self.kept = x.detach()


class InHyperparameters(Keeps):
    def prepare(self) -> None:
        self.save_hyperparameters({"seen": 0})

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        self.hparams.seen += len(y)


class InGlobal(Keeps):
    def prepare(self) -> None:
        SEEN.clear()

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        SEEN.update(y.tolist())


class InGlobalByHelper(Keeps):
    """A helper function keeps it in a global of which no method speaks."""

    def prepare(self) -> None:
        HISTORY.clear()

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        remember(float(len(y)))


def remember(value: float) -> None:
    HISTORY.append(value)


class InClass(Keeps):
    samples = 0

    def prepare(self) -> None:
        type(self).samples = 0

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        type(self).samples += len(y)


class InFunction(Keeps):
    """A cache as a default argument."""

    def prepare(self) -> None:
        type(self).keep.__defaults__[0].clear()  # type: ignore[index]

    def keep(self, x: Tensor, y: Tensor, loss: Tensor, cache: list[int] = []) -> None:  # noqa: B006
        cache.append(len(y))


class InClosure(Keeps):
    def prepare(self) -> None:
        counts = self.kept = []

        def note(number: int) -> None:
            counts.append(number)

        self.note = note

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        self.note(len(y))


class Totals:
    """Counts of a user's own."""

    samples = 0

    @classmethod
    def add(cls, number: int) -> None:
        """Count samples."""
        cls.samples += number


class InOtherClass(Keeps):
    """Counts in a class that is no module."""

    def prepare(self) -> None:
        Totals.samples = 0

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        Totals.add(len(y))


class InOtherModule(Keeps):
    """Counts in a global of another file, through a function of that file."""

    def prepare(self) -> None:
        settings.CALLS = 0

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        settings.count_call()


class InIterator(Keeps):
    """Counts its calls by an iterator."""

    def prepare(self) -> None:
        self.counter = itertools.count()

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        next(self.counter)


class InSubmodule(Keeps):
    """A layer counts its calls."""

    def prepare(self) -> None:
        self.layers[1].calls = 0

    def keep(self, x: Tensor, y: Tensor, loss: Tensor) -> None:
        self.layers[1].calls += 1


ENTRIES = [
    Entry("numbers in a list", Keeps),
    Entry("tensors in a list", InList),
    Entry("numbers in a list, stacks of two", Keeps, federated={"clients_at_once": 2}),
    Entry("deque", InDeque, long=True),
    Entry("Counter", InCounter),
    Entry("defaultdict", InDefaultDict, long=True),
    Entry("set", InSet, long=True),
    Entry("AverageMeter of tensors", InMeter),
    Entry("AverageMeter of numbers", InMeterByItem, long=True),
    Entry("numpy array", InArray),
    Entry("tensor that is no buffer", InTensor, long=True),
    Entry("namespace", InNamespace),
    Entry("object with slots", InSlots, long=True),
    Entry("attribute replaced", InAttribute),
    Entry("keeps the last inputs", LastOutputs, long=True),
    Entry("hparams", InHyperparameters),
    Entry("global Counter", InGlobal, outside=lambda: dict(SEEN)),
    Entry("global list by a helper", InGlobalByHelper, outside=lambda: list(HISTORY)),
    Entry("class attribute", InClass, outside=lambda: InClass.samples),
    Entry("default argument", InFunction, outside=lambda: InFunction.keep.__defaults__),
    Entry("closure", InClosure),
    Entry("class that is no module", InOtherClass, outside=lambda: Totals.samples),
    Entry("global of another file", InOtherModule, outside=lambda: settings.CALLS),
    Entry("iterator that counts", InIterator, outside=dict),
    Entry("attribute of a layer", InSubmodule, long=True),
]
