"""Loggers, trackers and other things out of sight hear of each client's batch once, under every executor."""

from __future__ import annotations

import contextlib
import csv
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_info
from lightning_utilities.core import rank_zero as rank_zero_module
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch.utils.data import Dataset

from fl_lightning import ClientDatasetsModule, FedAvg, TensorDataModule

SIZES = (8, 13, 6)  # 2, 4 and 2 batches of 4
BATCHES = 2 * [(0, 4), (1, 4), (0, 4), (1, 4), (2, 4), (3, 1), (0, 4), (1, 2)]  # of two rounds: number and size
EXECUTORS = ["sequential", "vectorized", "auto"]
OUT_OF_SIGHT = "keeps what it computes in an object that is not looked at"


class Tells(Module):
    """Tells somebody of each step."""

    def __init__(self, tell: Callable[..., Any], own: Any = None) -> None:
        super().__init__(nn.Linear(6, 3))
        self.__dict__["tell"], self.own = tell, own

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.tell(self.own, batch_idx, len(batch[0]), loss)
        return loss


def fit(module: Module, executor: str, data: Any = None) -> Any:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    data = data or TensorDataModule(clients_of((6,), SIZES), batch_size=4, shuffle=False)
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, seed=0, executor=executor)])
    trainer.fit(module, datamodule=data)
    return trainer.fit_loop.executor


def heard(rows: list[Any]) -> list[tuple[int, int]]:
    return sorted((int(index), int(size)) for index, size in rows)


class Named(CSVLogger):
    def say(self, size: int, step: int) -> None:
        self.experiment.log_metrics({"size": size}, step)


GLOBAL: Any = None  # a logger that is set by a test


def by_global(own: Any, index: int, size: int, loss: Tensor) -> None:
    GLOBAL.log_metrics({"size": size}, step=index)


def by_method(own: Any, index: int, size: int, loss: Tensor) -> None:
    GLOBAL.say(size, index)


def by_attribute(own: Any, index: int, size: int, loss: Tensor) -> None:
    own.log_metrics({"size": size, "loss": loss.item()}, step=index)


def by_catching(own: Any, index: int, size: int, loss: Tensor) -> None:
    with contextlib.suppress(KeyError):
        own.log_metrics({"size": size, "loss": loss.item()}, step=index)


@pytest.mark.auto_decides
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("by", [by_global, by_method, by_attribute, by_catching])
def test_a_logger_of_ones_own(executor: str, by: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = Named(tmp_path, flush_logs_every_n_steps=10_000)
    monkeypatch.setitem(globals(), "GLOBAL", logger)
    found = fit(Tells(by, logger if by in (by_attribute, by_catching) else None), executor)
    rows = list(logger.experiment.metrics)
    assert heard([(row["step"], row["size"]) for row in rows]) == sorted(BATCHES)
    assert {type(value) for row in rows for value in row.values()} <= {int, float}
    logger.save()
    if executor == "vectorized":
        assert "calls a logger" in found.cause


def by_lightnings_name(own: Any, index: int, size: int, loss: Tensor) -> None:
    logging.getLogger("lightning.pytorch.mine").warning("%d %d", index, size)


def by_torchs_name(own: Any, index: int, size: int, loss: Tensor) -> None:
    logging.getLogger("torch.mine").warning("%d %d", index, size)


def by_rank_zero(own: Any, index: int, size: int, loss: Tensor) -> None:
    rank_zero_info(f"{index} {size}")


@pytest.mark.auto_decides
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("by", "name"),
    [(by_lightnings_name, "lightning.pytorch.mine"), (by_torchs_name, "torch.mine"), (by_rank_zero, None)],
)
def test_messages_under_a_librarys_name(
    executor: str, by: Any, name: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    # the package of Lightning's that was imported last gives `rank_zero_info` its logger
    logger, messages = rank_zero_module.log if name is None else logging.getLogger(name), list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, logger=logger.name):
            fit(Tells(by), executor)
    finally:
        logger.removeHandler(handler)
    assert heard([message.split() for message in messages if message.replace(" ", "").isdigit()]) == sorted(BATCHES)


def test_messages_of_a_librarys_own_are_no_effects() -> None:
    def logs(own: Any, index: int, size: int, loss: Tensor) -> None:
        logger = logging.getLogger("some")
        logger.handle(logger.makeRecord("some", logging.DEBUG, lightning.__file__, 1, "checked", (), None))

    assert fit(Tells(logs), "vectorized").cause is None


@pytest.mark.auto_decides
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_writer_of_a_file_out_of_sight(executor: str, tmp_path: Path) -> None:
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        fit(Tells(lambda own, index, size, loss: writer.writerow([index, size])), executor)
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert heard(list(csv.reader(file))) == sorted(BATCHES)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Return a function that installs a package, which keeps what it is told."""

    def install(name: str) -> Any:
        folder = tmp_path / "site-packages" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("ROWS = []\n\n\ndef log(*row):\n    ROWS.append(row)\n")
        monkeypatch.syspath_prepend(str(folder.parent))
        for key in [key for key in sys.modules if key.split(".")[0] == name]:
            monkeypatch.delitem(sys.modules, key)
        monkeypatch.setitem(globals(), "PACKAGE", __import__(name))
        made.append(name)
        return PACKAGE

    made: list[str] = []
    yield install
    for name in made:
        sys.modules.pop(name, None)


PACKAGE: Any = None  # a package that is installed by a test


@pytest.mark.auto_decides
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_packages_that_track_experiments(executor: str, name: str, installed: Any) -> None:
    package = installed(name)
    found = fit(Tells(lambda own, index, size, loss: PACKAGE.log(index, size)), executor)
    assert heard(package.ROWS) == sorted(BATCHES)
    assert executor != "vectorized" or f"calls {name}" in found.cause
    assert sys.getprofile() is None


@pytest.mark.auto_decides
@pytest.mark.parametrize(
    "tell",
    [
        lambda own, index, size, loss: PACKAGE.log(loss.item()),
        lambda own, index, size, loss: PACKAGE.log(2 * loss.item()),
        lambda own, index, size, loss: PACKAGE.log(loss.detach()),
        lambda own, index, size, loss: PACKAGE.log({"nested": [("loss", loss)]}),
        lambda own, index, size, loss: PACKAGE.log(index),
    ],
)
def test_what_a_package_out_of_sight_keeps_are_numbers(tell: Any, installed: Any) -> None:
    package, weights = installed("unheard_of"), []
    for executor in EXECUTORS:
        package.ROWS.clear()
        module = Tells(tell)
        found = fit(module, executor)
        weights.append(module.layers.weight.detach())
        assert executor != "vectorized" or OUT_OF_SIGHT in found.cause
        assert len(package.ROWS) >= len(BATCHES)
        for (value,) in package.ROWS:
            value = value["nested"][0][1] if isinstance(value, dict) else value
            assert type(value) in (int, float, Tensor)
            float(value)
            value.tolist() if type(value) is Tensor else None
    assert all(torch.equal(weights[0], others) for others in weights[1:])


class TellsTheMark(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        PACKAGE.log(batch[2])
        return super().training_step(batch, batch_idx)


class MarkedSamples(Dataset[Any]):
    """Samples with a text, another one for each client."""

    def __init__(self, tensors: tuple[Tensor, Tensor], mark: str) -> None:
        self.tensors, self.mark = tensors, mark

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, place: int) -> Any:
        return self.tensors[0][place], self.tensors[1][place], self.mark


def with_first_mark(samples: Any) -> Any:
    x, y, marks = zip(*samples, strict=True)
    return torch.stack(x), torch.stack(y), marks[0]


@pytest.mark.auto_decides
@pytest.mark.parametrize("executor", EXECUTORS)
def test_texts_of_batches_that_a_package_keeps(executor: str, installed: Any) -> None:
    package = installed("unheard_of")
    marked = [MarkedSamples(own, f"client {k}") for k, own in enumerate(clients_of((6,), SIZES))]
    data = ClientDatasetsModule(marked, batch_size=4, collate_fn=with_first_mark)
    found = fit(TellsTheMark(nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3))), executor, data)
    assert executor != "vectorized" or OUT_OF_SIGHT in found.cause
    assert {type(mark) for (mark,) in package.ROWS} == {str}


def of_a_gradient(own: Any, index: int, size: int, loss: Tensor) -> None:
    def kept(x: Tensor) -> Tensor:
        PACKAGE.log(2 * x)
        return x.square()

    torch.func.grad(kept)(loss.detach())


def before_printing(own: Any, index: int, size: int, loss: Tensor) -> None:
    PACKAGE.log(loss.item())
    print(index)


@pytest.mark.parametrize("tell", [of_a_gradient, before_printing])
def test_nothing_is_left_of_a_stack_that_breaks(tell: Any, installed: Any) -> None:
    package = installed("unheard_of")
    assert fit(Tells(tell), "vectorized").cause is not None
    assert len(package.ROWS) > len(BATCHES)
    for (value,) in package.ROWS:
        while isinstance(value, Tensor) and functorch.is_functorch_wrapped_tensor(value):  # a gradient's own
            assert not functorch.is_batchedtensor(value)
            value = functorch.get_unwrapped(value)
        assert type(value) in (float, Tensor)
        float(value)


def test_what_a_package_out_of_sight_forgets_does_not_stop_stacks(installed: Any) -> None:
    package = installed("unheard_of")
    found = fit(Tells(lambda own, index, size, loss: (PACKAGE.log(loss.item()), package.ROWS.clear())), "vectorized")
    assert found.cause is None


class Samples(Dataset[Any]):
    """Samples that are read one by one."""

    def __init__(self, tensors: tuple[Tensor, Tensor]) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, place: int) -> Any:
        return 2 * self.tensors[0][place], self.tensors[1][place]


@pytest.mark.auto_decides
def test_data_of_other_processes_are_stacked() -> None:
    weights = []
    for executor in EXECUTORS:
        for workers in (0, 1):
            datasets = [Samples(tensors) for tensors in clients_of((6,), SIZES)]
            module = Module(nn.Linear(6, 3))
            found = fit(module, executor, ClientDatasetsModule(datasets, batch_size=4, num_workers=workers))
            assert executor != "vectorized" or found.cause is None
            weights.append(module.layers.weight.detach())
    assert all(torch.allclose(weights[0], others, rtol=0, atol=1e-12) for others in weights[1:])
