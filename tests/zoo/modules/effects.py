"""Steps that do something beside computing with tensors: each client's batch does it once, in order."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import random
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.entry import Entry, one_by_one
from zoo.modules.base import Classifier, losing
from zoo.outcome import CallRecorder

FOLDER = tempfile.TemporaryDirectory(prefix="zoo")
LINES = Path(FOLDER.name) / "lines"
TOLD: list[Any] = []
NUMBER = 0
LOGGER = CallRecorder()  # of no trainer
Act = Callable[[Any, int, Tensor], Any]


class Does(Classifier):
    """Does something in each step, ``act(module, number of samples, loss)``, which may return a weight of the loss.

    ``kept`` is what ``make()`` has made.
    """

    samples = 0

    def __init__(self, act: Act, make: Callable[[], Any] = list) -> None:
        super().__init__()
        clear()
        self.kept, self.act = make(), act
        self.save_hyperparameters({"seen": 0})

    def print(self, *args: Any, **kwargs: Any) -> None:
        super().print("by the module", *args, **kwargs)

    @property
    def last(self) -> int:
        return 0

    @last.setter
    def last(self, value: int) -> None:
        self.kept.append(value)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        weight = self.act(self, len(batch[1]), loss)
        return loss if weight is None else weight * loss


def clear() -> None:
    """Forget everything that is kept outside of modules."""
    global NUMBER
    NUMBER = Does.samples = Totals.samples = 0
    TOLD.clear()
    LOGGER.calls.clear()
    LINES.unlink(missing_ok=True)
    default.__defaults__[0].clear()  # type: ignore[index]
    os.environ.pop("ZOO_STEPS", None)
    table.cache_clear()


def outside() -> list[Any]:
    """Return what is kept outside of modules."""
    counts = [NUMBER, Does.samples, Totals.samples, os.environ.get("ZOO_STEPS"), table.cache_info().hits]
    written = LINES.read_text() if LINES.exists() else ""
    return [counts, list(TOLD), list(LOGGER.calls), default.__defaults__, written]


def does(name: str, act: Act, make: Callable[[], Any] = list, **options: Any) -> Entry:
    return Entry(name, lambda: Does(act, make), outside=outside, **options)


class Slotted:
    """Keeps a number without a dictionary."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class Totals:
    """Counts of a user's own, in a class."""

    samples = 0


class Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        TOLD.append(record.getMessage())


class HoldsTrainer(Classifier):
    """Reads the trainer's counter through a reference of its own."""

    def on_train_start(self) -> None:
        trainer = self.trainer
        self.steps = lambda: trainer.global_step

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return super().loss(batch, batch_idx) * (1 + 0.1 * self.steps())


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

    __hash__ = None  # type: ignore[assignment]


ODD: list[Any] = [OddToLookAt()]


def default(value: int, cache: list[int] = []) -> None:  # noqa: B006
    cache.append(value)


@functools.lru_cache
def table(size: int) -> Tensor:
    return torch.ones(size)


@torch.compiler.disable
def disabled(value: int) -> None:
    TOLD.append(value)


def remember(value: Any) -> None:
    TOLD.append(value)


def in_global(module: Any, n: int, loss: Tensor) -> None:
    global NUMBER
    NUMBER += 1


def in_environment(module: Any, n: int, loss: Tensor) -> float:
    os.environ["ZOO_STEPS"] = str(int(os.environ.get("ZOO_STEPS", "0")) + 1)
    return 1 / int(os.environ["ZOO_STEPS"])


def in_closure() -> Any:
    counts: list[int] = []
    return counts, lambda number: counts.append(number)


def in_data_module(module: Any, n: int, loss: Tensor) -> float:
    holder = module.trainer.datamodule
    holder.count = getattr(holder, "count", 0) + 1
    return min(2.0, 1 + holder.count / 100)


def logs(module: Any, n: int, loss: Tensor) -> None:
    handler, logger = Handler(), logging.getLogger("zoo")
    logger.addHandler(handler)
    logger.warning("%s samples", n)
    logger.removeHandler(handler)


def appends(module: Any, n: int, loss: Tensor) -> None:
    with open(LINES, "a") as file:
        file.write(f"{n}\n")


def by_thread(module: Any, n: int, loss: Tensor) -> None:
    thread = threading.Thread(target=TOLD.append, args=(n,))
    thread.start()
    thread.join()


def caught(module: Any, n: int, loss: Tensor) -> None:
    with contextlib.suppress(Exception):
        module.logger.log_metrics({"mine": 1.0}, 0)


def in_dictionary(module: Any, n: int, loss: Tensor) -> None:
    module.kept[n] += 1


def in_namespace(module: Any, n: int, loss: Tensor) -> None:
    module.kept.n += n


def in_slots(module: Any, n: int, loss: Tensor) -> int:
    module.kept.total += 1
    return int(module.kept.total)


def in_array(module: Any, n: int, loss: Tensor) -> Any:
    module.kept += n
    return module.kept.sum()


def in_class(module: Any, n: int, loss: Tensor) -> None:
    type(module).samples += n


def in_other_class(module: Any, n: int, loss: Tensor) -> None:
    Totals.samples += n


def in_hyperparameters(module: Any, n: int, loss: Tensor) -> None:
    module.hparams.seen += n


ENTRIES = [
    does("numbers in a list", lambda m, n, loss: m.kept.append(n)),
    Entry("trainer by another way", HoldsTrainer),
    does("prints", lambda m, n, loss: print(n)),
    *one_by_one(
        does("attribute of a layer", lambda m, n, loss: setattr(m.layers[1], "seen", n)),
        does("class attribute", in_class),
        does("global list by a helper", lambda m, n, loss: remember(n)),
        does("cache of a function", lambda m, n, loss: 1 + 0.01 * table(2).numel() * table.cache_info().hits),
        does("counts in the data module", in_data_module, by_hand=False),
        does("own generator", lambda m, *_: torch.rand((), generator=m.kept), lambda: torch.Generator().manual_seed(7)),
        does("logs a message", logs),
        does("appends to a file", appends),
        Entry("made by the first step", MadeOnce),
        losing("global that cannot be looked at", lambda m, x, y: F.cross_entropy(m(x), y) * len(ODD)),
    ),
]
LONG = [
    does("numbers in a list, stacks of two", lambda m, n, loss: m.kept.append(n), federated={"clients_at_once": 2}),
    does("keeps the last loss", lambda m, n, loss: setattr(m, "kept", loss.detach())),
    does("setter", lambda m, n, loss: setattr(m, "last", n)),
    does("number of a tensor kept", lambda m, n, loss: m.kept.append(loss.item())),
    does("calls a logger, exceptions caught", caught),
    does("prints a value", lambda m, n, loss: print(f"{loss:.5f}")),
    losing("batch changed in place", lambda m, x, y: F.cross_entropy(m(x.mul_(2)), y)),
    does("draws of Python", lambda m, n, loss: random.random()),
    does("draws of numpy", lambda m, n, loss: np.random.beta(1.0, 1.0)),
    *one_by_one(
        does("attribute replaced", lambda m, n, loss: setattr(m, "kept", n)),
        does("hparams", in_hyperparameters),
        does("Counter", in_dictionary, Counter),
        does("namespace", in_namespace, lambda: SimpleNamespace(n=0)),
        does("object with slots", in_slots, Slotted),
        does("numpy array", in_array, lambda: np.zeros(2)),
        does("tensor that is no buffer", lambda m, n, loss: m.kept.add_(n).sum() / 10, lambda: torch.zeros(2)),
        does("tensor by .data", lambda m, n, loss: m.kept.data.add_(n).sum() / 10, lambda: torch.zeros(2)),
        does("iterator that counts", lambda m, n, loss: 1 + next(m.kept) / 9, itertools.count),
        does("numpy's generator", lambda m, n, loss: m.kept.random(), lambda: np.random.default_rng(3)),
        does("closure", lambda m, n, loss: m.kept[1](n), in_closure),
        does("global number", in_global),
        does("class that is no module", in_other_class),
        does("default argument", lambda m, n, loss: default(n)),
        does("environment variable", in_environment),
        does("logger of another trainer", lambda m, n, loss: LOGGER.log_metrics({str(n): loss.item()}, step=0)),
        does("thread", by_thread),
        does("function that is not compiled", lambda m, n, loss: disabled(n)),
        does("draws by Python's choice", lambda m, n, loss: random.choice([0.5, 2.0])),
        does("warns", lambda m, n, loss: warnings.warn("a step", stacklevel=1)),
        does("makes a layer", lambda m, n, loss: torch.nn.Linear(3, 1).double()(loss.expand(3)).sum()),
        does("reads its state", lambda m, n, loss: sum(value.sum() for value in m.layers.state_dict().values())),
        losing("numpy of a batch", lambda m, x, y: F.cross_entropy(m(x), y) * float(np.exp(x.numpy().mean()))),
        Entry("made again for other sizes", MadeForEachSize),
    ),
]
