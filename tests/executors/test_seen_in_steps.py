"""Steps that use metric objects, logged numbers and state that is hard to see."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import quiet_trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from fl_lightning import FedAvg, TensorDataModule

SIZES = (8, 13, 6, 21, 10)


def fit(module: Module, executor: Any, sizes: tuple[int, ...] = SIZES, seed: int = 1, **trainer: Any) -> Any:
    fitter = quiet_trainer(max_epochs=3, callbacks=[FedAvg(1.0, seed=seed, executor=executor)], **trainer)
    fitter.fit(module, datamodule=TensorDataModule(clients_of((6,), sizes), batch_size=4))
    return fitter


def assert_same(make: Callable[[], Module], *arguments: Any, **options: Any) -> str | None:
    """Compare a fit's weights and logged values under both executors; return why clients are not stacked."""
    weights, values = [], []
    for executor in ("sequential", "vectorized"):
        module = make()
        fitter = fit(module, executor, *arguments, **options)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in module.parameters()]))
        values.append({name: float(value) for name, value in fitter.callback_metrics.items()})
    assert torch.allclose(weights[0], weights[1], rtol=0, atol=1e-10)
    assert values[1] == pytest.approx(values[0], abs=1e-6)
    return fitter.fit_loop.executor.cause  # type: ignore[no-any-return]


# ---- metric objects ----


class Rates(Module):
    """Scales its loss by what a metric object returns, in one of several ways."""

    def __init__(self, use: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__(linear())
        self.accuracy = MulticlassAccuracy(3, average="micro")
        self.use = use

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self.layers(batch[0])
        accuracy = self.accuracy(scores, batch[1])
        self.log("accuracy", accuracy)
        return self.use(accuracy, F.cross_entropy(scores, batch[1]))


@pytest.mark.parametrize(
    "use",
    [
        lambda accuracy, loss: 0.1 * loss if accuracy == 1.0 else loss,
        lambda accuracy, loss: 0.1 * loss if accuracy in (0.0, 1.0) else loss,
        lambda accuracy, loss: loss * accuracy,
        lambda accuracy, loss: loss / (1 + float(accuracy)),
        lambda accuracy, loss: loss * (2 - accuracy.item()),
    ],
)
def test_a_returned_value_that_is_used_is_each_clients_own(use: Any) -> None:
    cause = assert_same(lambda: Rates(use))
    assert cause is not None
    assert "uses what a metric object returns" in cause


def test_a_returned_value_that_is_only_logged_does_not_stop_stacks() -> None:
    assert assert_same(lambda: Rates(lambda accuracy, loss: loss)) is None


class AveragesLosses(Module):
    """Gives a metric object its loss with its graph."""

    def __init__(self) -> None:
        super().__init__(linear())
        self.average = MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        self.average(loss)
        self.log("average", self.average, on_step=True, on_epoch=True)
        return loss


@pytest.mark.parametrize("seed", [0, 1])
def test_a_loss_given_to_a_metric_object_need_not_be_detached(seed: int) -> None:
    assert assert_same(AveragesLosses, seed=seed) is None


# ---- state that is hard to see ----

STEPS = 3 * 17  # 2, 4, 2, 6 and 3 batches
counted = [0]
variable: ContextVar[int] = ContextVar("variable", default=0)
passed: Iterator[int] = iter(())


def repeated() -> Iterator[int]:
    yield from [1] * (STEPS + 1)


class Counts(Module):
    """Counts its steps somewhere, which a stack would take once for all of its clients."""

    def __init__(self) -> None:
        super().__init__(linear())
        self.array, self.bytes, self.random = array("d"), bytearray(), np.random.RandomState(3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.count()
        return super().training_step(batch, batch_idx)

    def count(self) -> None:
        raise NotImplementedError

    def total(self) -> int:
        return counted[0]


class CountsInNestedFunction(Counts):
    def count(self) -> None:
        def add() -> None:
            counted[0] += 1

        add()


class CountsInLambda(Counts):
    def count(self) -> None:
        (lambda: counted.__setitem__(0, counted[0] + 1))()


class CountsInSetter(Counts):
    @property
    def last(self) -> int:
        return 0

    @last.setter
    def last(self, value: int) -> None:
        counted[0] += value

    def count(self) -> None:
        self.last = 1


class CountsInArray(Counts):
    def count(self) -> None:
        self.array.append(1.0)

    def total(self) -> int:
        return len(self.array)


class CountsInBytes(Counts):
    def count(self) -> None:
        self.bytes.append(1)

    def total(self) -> int:
        return len(self.bytes)


class CountsInVariable(Counts):
    def count(self) -> None:
        variable.set(variable.get() + 1)

    def total(self) -> int:
        return variable.get()


class CountsInRandomState(Counts):
    def count(self) -> None:
        self.random.rand()

    def total(self) -> int:
        drawn = np.random.RandomState(3).rand(STEPS + 1)
        return int(np.flatnonzero(drawn == self.random.rand())[0])


class CountsInGenerator(Counts):
    def count(self) -> None:
        next(passed)

    def total(self) -> int:
        return STEPS + 1 - len(list(passed))


@pytest.mark.parametrize("kind", Counts.__subclasses__())
def test_steps_are_counted_once_for_each_client(kind: type[Counts]) -> None:
    global passed
    counted[0], passed = 0, repeated()
    variable.set(0)
    module = kind()
    fitter = fit(module, "vectorized")
    assert module.total() == STEPS
    assert fitter.fit_loop.executor.cause is not None


def test_state_that_does_not_change_does_not_stop_stacks() -> None:
    class Holds(Counts):
        def count(self) -> None:
            assert not self.array and not self.bytes and passed is not None and not variable.get(0)

    variable.set(0)
    module = Holds()
    assert fit(module, "vectorized").fit_loop.executor.cause is None


# ---- compiled layers ----


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_scripted_layers_train_as_others() -> None:
    def layers() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).double()

    modules = [Module(layers()), Module(torch.jit.script(layers())), Module(torch.jit.script(layers()))]
    for module, executor in zip(modules, ("sequential", "sequential", "vectorized"), strict=True):
        fitter = fit(module, executor, (8, 12, 6, 20))
    assert "compiled by `torch.jit`" in fitter.fit_loop.executor.cause
    states = [module.state_dict() for module in modules]
    assert all(torch.allclose(states[0][name], states[1][name], rtol=0, atol=1e-12) for name in states[0])
    assert all(torch.equal(states[1][name], states[2][name]) for name in states[0])


# ---- logged numbers ----


class LogsByWeight(Module):
    """Logs each batch's share of class 0, which counts as often as the batch has samples of class 0."""

    def __init__(self, weight: Callable[[Tensor], Any]) -> None:
        super().__init__(linear())
        self.weight = weight

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        first = batch[1] == 0
        self.log("share", first.double().mean(), on_step=False, on_epoch=True, batch_size=self.weight(first))
        return F.cross_entropy(self.layers(batch[0]), batch[1])


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("weight", [lambda first: first.sum(), lambda first: first.sum().item()])
def test_a_batch_size_in_a_tensor_is_each_batchs_own(weight: Any, executor: str) -> None:
    fitter = fit(LogsByWeight(weight), executor, (4, 4, 3, 2, 4, 4))  # one batch a client
    firsts = [int((labels == 0).sum()) for _, labels in clients_of((6,), (4, 4, 3, 2, 4, 4))]
    shares = [first / size for first, size in zip(firsts, (4, 4, 3, 2, 4, 4), strict=True)]
    expected = sum(share * first for share, first in zip(shares, firsts, strict=True)) / sum(firsts)
    assert float(fitter.callback_metrics["share"]) == pytest.approx(expected, abs=1e-7)
    assert executor == "sequential" or fitter.fit_loop.executor.cause is None


class ScalesByCount(Module):
    """Computes with a whole number as Python does."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self.layers(batch[0])
        correct = (scores.argmax(1) == batch[1]).sum().item()
        return F.cross_entropy(scores, batch[1]) * (1 + correct / 3)


def test_whole_numbers_of_tensors_keep_their_digits() -> None:
    assert assert_same(lambda: ScalesByCount(linear())) is None


class LogsSmallBatches(Module):
    """Logs a second number, on batches of fewer than three samples alone."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("size", float(len(batch[1])))
        if len(batch[1]) < 3:
            self.log("small", float(len(batch[1])), on_step=True, on_epoch=True)
        return loss


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_loggers_hear_of_a_name_from_its_first_step_on(executor: str, tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    fitter = fit(LogsSmallBatches(linear()), executor, (4, 4, 4, 2, 4, 4), logger=logger, log_every_n_steps=1)
    assert executor == "sequential" or fitter.fit_loop.executor.cause is None
    with Path(logger.log_dir, "metrics.csv").open() as file:
        steps = [row for row in csv.DictReader(file) if row["size"]]
    assert len(steps) == 3 * 6
    for start in (0, 6, 12):
        sizes = [float(row["size"]) for row in steps[start : start + 6]]
        heard = [bool(row["small_step"]) for row in steps[start : start + 6]]
        assert heard == [place >= sizes.index(2.0) for place in range(6)]
