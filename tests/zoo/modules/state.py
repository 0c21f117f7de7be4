"""Modules that keep something of each batch outside of their parameters and buffers, in all places that Python has."""

from __future__ import annotations

import decimal
import functools
import itertools
import os
import sys
from array import array
from collections import Counter, UserDict, defaultdict, deque
from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.entry import Entry, alike
from zoo.modules import settings
from zoo.modules.base import Classifier

SEEN: Counter[int] = Counter()
HISTORY: list[float] = []
CALLS = 0
VARIABLE: ContextVar[int] = ContextVar("VARIABLE", default=0)


class Keeps(Classifier):
    """Keeps something of each batch: ``keep(module, y, loss)`` puts it where ``make()`` has made a place.

    What ``keep`` returns, if anything, weighs the loss.
    """

    def __init__(self, make: Callable[[], Any], keep: Callable[[Any, Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.kept, self.keep = make(), keep

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        weight = self.keep(self, y, loss)
        return loss if weight is None else weight * loss


def kept(name: str, make: Callable[[], Any], keep: Callable[[Any, Tensor, Tensor], Any], **options: Any) -> Entry:
    return Entry(name, lambda: Keeps(make, keep), alone="changes what clients share", **options)


class AverageMeter:
    """The meter of PyTorch's ImageNet example."""

    def __init__(self) -> None:
        self.sum: Any = 0
        self.count = 0

    def update(self, value: Any, n: int = 1) -> None:
        self.sum += value * n
        self.count += n


class Slotted:
    """Keeps a number without a dictionary, under a name of its own."""

    __slots__ = ("__total",)

    def __init__(self) -> None:
        self.__total = 0

    def add(self, number: int) -> None:
        self.__total += number

    def __reduce__(self) -> Any:
        return type(self), ()

    @property
    def total(self) -> int:
        return self.__total


class Totals:
    """Counts of a user's own, in a class."""

    samples = 0

    @classmethod
    def add(cls, number: int) -> None:
        cls.samples += number


class Beside:
    """Keeps what is set of an object beside it."""

    held: ClassVar[WeakKeyDictionary[Any, int]] = WeakKeyDictionary()

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self.held.get(owner, 0)

    def __set__(self, owner: Any, value: int) -> None:
        self.held[owner] = value


class Described:
    samples: Any = Beside()


class Mapping(dict):  # type: ignore[type-arg]
    """Has attributes beside its contents."""


class Text(str):
    """The same."""


class Target:
    """Something that others hold weakly."""

    calls = 0


TARGET = Target()


def remember(value: float) -> None:
    HISTORY.append(value)


def default(value: int, cache: list[int] = []) -> None:  # noqa: B006
    cache.append(value)


@functools.lru_cache
def table(size: int) -> Tensor:
    return torch.ones(size)


def count(function: Any) -> None:
    function.calls = getattr(function, "calls", 0) + 1


def attribute_of(held: Any) -> Callable[[Any, Tensor, Tensor], None]:
    """Return a function that counts in an attribute of what ``held`` finds in the module."""
    return lambda module, y, loss: setattr(held(module), "calls", getattr(held(module), "calls", 0) + 1)


def in_closure() -> Any:
    counts: list[int] = []
    return counts, lambda number: counts.append(number)


def in_nested(module: Any, y: Tensor, loss: Tensor) -> None:
    def add() -> None:
        HISTORY.append(len(y))

    add()


def in_global(module: Any, y: Tensor, loss: Tensor) -> None:
    global CALLS
    CALLS += 1


def in_package(module: Any, y: Tensor, loss: Tensor) -> None:
    from zoo.modules import settings as imported

    imported.CALLS += 1


def in_environment(module: Any, y: Tensor, loss: Tensor) -> float:
    os.environ["ZOO_STEPS"] = str(int(os.environ.get("ZOO_STEPS", "0")) + 1)
    return 1 / int(os.environ["ZOO_STEPS"])


def in_decimal(module: Any, y: Tensor, loss: Tensor) -> float:
    decimal.getcontext().prec += 1
    return 1 + 0.01 * decimal.getcontext().prec


def in_modules(module: Any, y: Tensor, loss: Tensor) -> None:
    sys.modules[f"step_of_the_zoo_{sum(name.startswith('step_of_the_zoo') for name in sys.modules)}"] = decimal


def of_cache(module: Any, y: Tensor, loss: Tensor) -> float:
    return 1 + 0.01 * table(2).numel() * table.cache_info().hits


def clear() -> None:
    """Forget everything that is kept outside of modules."""
    global CALLS
    CALLS = settings.CALLS = Totals.samples = TARGET.calls = 0
    SEEN.clear()
    HISTORY.clear()
    Beside.held.clear()
    VARIABLE.set(0)
    default.__defaults__[0].clear()  # type: ignore[index]
    vars(remember).pop("calls", None)
    vars(Totals.add.__func__).pop("calls", None)  # type: ignore[attr-defined]
    os.environ.pop("ZOO_STEPS", None)
    decimal.setcontext(decimal.Context())
    table.cache_clear()
    for name in [name for name in sys.modules if name.startswith("step_of_the_zoo")]:
        del sys.modules[name]


def outside() -> list[Any]:
    """Return what is kept outside of modules."""
    counts = [CALLS, settings.CALLS, Totals.samples, TARGET.calls, VARIABLE.get(), table.cache_info().hits]
    methods = [vars(remember).get("calls"), os.environ.get("ZOO_STEPS"), decimal.getcontext().prec]
    added = sum(name.startswith("step_of_the_zoo") for name in sys.modules)
    return [counts, methods, added, dict(SEEN), list(HISTORY), list(Beside.held.values()), default.__defaults__]


def elsewhere(name: str, keep: Callable[[Any, Tensor, Tensor], Any], **options: Any) -> Entry:
    """Return an entry that keeps something outside of the module."""
    return kept(name, clear, keep, outside=outside, **options)


class InHyperparameters(Classifier):
    def prepare(self) -> None:
        self.save_hyperparameters({"seen": 0})

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        self.hparams.seen += len(batch[1])
        return super().loss(batch, batch_idx)


class InSetter(Keeps):
    """Counts in a property's setter."""

    def __init__(self) -> None:
        super().__init__(list, lambda module, y, loss: setattr(module, "last", len(y)))

    @property
    def last(self) -> int:
        return 0

    @last.setter
    def last(self, value: int) -> None:
        self.kept.append(value)


class InClass(Keeps):
    samples = 0

    def __init__(self) -> None:
        type(self).samples = 0
        super().__init__(list, lambda module, y, loss: setattr(type(module), "samples", type(module).samples + len(y)))


class NotesMethods(Keeps):
    """Keeps the method of a list, not the list."""

    def __init__(self) -> None:
        held: list[int] = []
        super().__init__(lambda: held.append, lambda module, y, loss: module.kept(len(y)))
        NOTED[:] = [held]


NOTED: list[Any] = []


class MadeOnce(Classifier):
    """Keeps what its first step makes, as layers do that initialise themselves by data."""

    mean: Tensor | None = None

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        if self.mean is None:
            self.mean = torch.ones(x.shape[1], dtype=x.dtype) / 2
        return F.cross_entropy(self(x - self.mean * self.scale), y)

    @functools.cached_property
    def scale(self) -> Tensor:
        return torch.tensor(0.5)


class MadeForEachSize(Classifier):
    """Keeps the mean of the first batch after one of another size."""

    mean: Any = None

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        if self.mean is None or len(self.mean) != len(x):
            self.mean = x.mean(0).expand_as(x)
        return F.cross_entropy(self(x - self.mean), y)


class OddToLookAt:
    """Fails whatever one asks."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("outside of a request")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("cannot be compared")

    __hash__ = None  # type: ignore[assignment]


ODD: list[Any] = [OddToLookAt()]


class ReadsOddThings(Classifier):
    """Uses nothing of a global that cannot be looked at."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        return loss if len(ODD) == 1 else 0 * loss


def trainers(name: str, hold: Callable[[Any], Any]) -> Entry:
    """Return an entry that counts in an attribute of an object that the trainer holds, and weighs the loss by it."""

    def keep(module: Any, y: Tensor, loss: Tensor) -> float:
        holder = hold(module.trainer)
        holder.count = getattr(holder, "count", 0) + 1
        module.kept[0] = holder.count
        return min(2.0, 1 + holder.count / 100)

    return kept(name, lambda: [0], keep, by_hand=False)


ENTRIES = [
    kept("numbers in a list", list, lambda m, y, loss: m.kept.append(len(y))),
    kept(
        "numbers in a list, stacks of two",
        list,
        lambda m, y, loss: m.kept.append(len(y)),
        federated={"clients_at_once": 2},
        long=True,
    ),
    kept("attribute replaced", list, lambda m, y, loss: setattr(m, "kept", len(y)), long=True),
    Entry("hparams", InHyperparameters, alone="changes what clients share", long=True),
    Entry("class attribute", InClass, outside=lambda: InClass.samples, alone="changes what clients share"),
    Entry("made by the first step", MadeOnce),
    Entry("made again for other sizes", MadeForEachSize, alone="changes what clients share"),
    Entry("global that cannot be looked at", ReadsOddThings),
    elsewhere("global Counter", lambda m, y, loss: SEEN.update(y.tolist()), long=True),
    elsewhere("global of another file", lambda m, y, loss: settings.count_call(), long=True),
    *alike(
        kept("tensors in a list", list, lambda m, y, loss: m.kept.append(loss.detach())),
        kept("deque", lambda: deque(maxlen=5), lambda m, y, loss: m.kept.append(len(y))),
        kept("Counter", Counter, lambda m, y, loss: m.kept.update(y.tolist())),
        kept("defaultdict", lambda: defaultdict(int), lambda m, y, loss: m.kept.update(batches=m.kept["batches"] + 1)),
        kept("set", set, lambda m, y, loss: m.kept.add(len(y))),
        kept("UserDict", UserDict, lambda m, y, loss: m.kept.update({len(m.kept): len(y)}), long=True),
        kept("AverageMeter of tensors", AverageMeter, lambda m, y, loss: m.kept.update(loss.detach(), len(y))),
        kept("AverageMeter of numbers", AverageMeter, lambda m, y, loss: m.kept.update(loss.item(), len(y))),
        kept("namespace", lambda: SimpleNamespace(n=0), lambda m, y, loss: setattr(m.kept, "n", m.kept.n + len(y))),
        kept("numpy array", lambda: np.zeros(2), lambda m, y, loss: m.kept.__iadd__(len(y)).sum()),
        kept("tensor that is no buffer", lambda: torch.zeros(2), lambda m, y, loss: m.kept.add_(len(y)).sum() / 10),
        kept("keeps the last logits", list, lambda m, y, loss: setattr(m, "kept", loss.detach())),
    ),
    *alike(
        kept("object with slots", Slotted, lambda m, y, loss: m.kept.add(1) or m.kept.total),
        kept("array of numbers", lambda: array("d"), lambda m, y, loss: m.kept.append(len(y)) or len(m.kept)),
        kept("bytearray", bytearray, lambda m, y, loss: m.kept.append(1) or len(m.kept)),
        kept("numpy's old generator", lambda: np.random.RandomState(3), lambda m, y, loss: m.kept.rand()),
        kept("numpy's generator", lambda: np.random.default_rng(3), lambda m, y, loss: m.kept.random()),
        kept("raw generator", lambda: np.random.PCG64(1), lambda m, y, loss: 1 + m.kept.random_raw() % 7),
        kept("iterator that counts", itertools.count, lambda m, y, loss: 1 + next(m.kept) / 9),
        kept("generator that counts", lambda: (1 + n % 7 for n in itertools.count()), lambda m, y, loss: next(m.kept)),
        kept(
            "attribute of a dictionary",
            lambda: Mapping(a=1),
            attribute_of(lambda m: m.kept),
        ),
        kept("attribute of a text", lambda: Text("a"), attribute_of(lambda m: m.kept)),
        kept(
            "attribute of a tensor",
            lambda: torch.zeros(2),
            attribute_of(lambda m: m.kept),
        ),
        kept("attribute of a partial", lambda: functools.partial(print, 1), attribute_of(lambda m: m.kept)),
        kept("attribute of a layer", list, attribute_of(lambda m: m.layers[1])),
        kept("attribute of a parameter", list, attribute_of(lambda m: m._parameters.get("w", m.layers[0].weight))),
        Entry("setter", InSetter, alone="changes what clients share"),
        kept("closure", in_closure, lambda m, y, loss: m.kept[1](len(y)), long=True),
        Entry("method of a list", NotesMethods, outside=lambda: NOTED, alone="changes what clients share"),
    ),
    *alike(
        elsewhere("global list by a helper", lambda m, y, loss: remember(float(len(y)))),
        elsewhere("global list by a nested function", in_nested),
        elsewhere("global number", in_global),
        elsewhere("class that is no module", lambda m, y, loss: Totals.add(len(y))),
        elsewhere("default argument", lambda m, y, loss: default(len(y))),
        elsewhere("attribute of a function", lambda m, y, loss: count(remember), long=True),
        elsewhere("import in the step", in_package),
        elsewhere("weak reference", lambda m, y, loss: attribute_of(lambda m: ref(TARGET)())(m, y, loss)),
        elsewhere("descriptor", lambda m, y, loss: setattr(m.layers, "odd", Described()) or None),
        elsewhere("globals()", lambda m, y, loss: globals().update(CALLS=CALLS + 1)),
        elsewhere("context variable", lambda m, y, loss: VARIABLE.set(VARIABLE.get() + 1) and None, long=True),
        elsewhere("environment variable", in_environment),
        elsewhere("context of decimal", in_decimal),
        elsewhere("sys.modules", in_modules),
        elsewhere("cache of a function", of_cache),
    ),
    *alike(
        trainers("counts in the data module", lambda trainer: trainer.datamodule),
        trainers("counts in the strategy", lambda trainer: trainer.strategy),
        trainers("counts in the trainer's state", lambda trainer: trainer.state),
        trainers("counts in the optimizer", lambda trainer: trainer.optimizers[0]),
        trainers("counts in the accelerator", lambda trainer: trainer.accelerator),
    ),
]
