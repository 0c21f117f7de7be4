"""What a step prints, and tells loggers, is told after a stack, client by client, as if each had trained alone."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import quiet_trainer
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.executors import VectorizedExecutor

SIZES = (8, 12, 6)


class Writer:
    """Stands for what a logger writes with."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def add_scalar(self, name: str, value: Any, step: int, **options: Any) -> None:
        self.calls.append((name, float(value), step, options))

    def add_histogram(self, name: str, values: Tensor) -> None:
        self.calls.append((name, values.shape, float(values.sum())))


class Recorder(DummyLogger):
    """A logger that records what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = Writer()

    @property
    def experiment(self) -> Any:
        return self.writer

    @property
    def number(self) -> int:
        return 3

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.writer.calls.append(({name: float(value) for name, value in metrics.items()}, step))


class Telling(Module):
    """Classifies, and tells what it does."""

    def __init__(self) -> None:
        super().__init__(linear())
        self.rounds = 0


def fit(kind: type[Telling], executor: Any, sizes: tuple[int, ...] = SIZES) -> tuple[Any, list[Any]]:
    """Return the weights and what was logged last, and what the logger was told."""
    module = kind()
    logger = Recorder()
    callback = FedAvg(1.0, executor=executor, seed=1)
    options: Any = {"max_epochs": 2, "precision": "64-true", "logger": logger, "log_every_n_steps": 1}
    trainer = quiet_trainer(callbacks=[callback], **options)
    trainer.fit(module, datamodule=TensorDataModule(clients_of((6,), sizes), batch_size=4))
    return (module.state_dict(), trainer.callback_metrics), logger.writer.calls


def rounded(text: str) -> str:
    """Return a text with three digits after each point."""
    return re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.3f}", text)


def ends_alike(kind: type[Telling], capsys: Any, sizes: tuple[int, ...] = SIZES) -> str | None:
    """Compare fits with stacks and without; return why clients were not stacked."""
    stacks = VectorizedExecutor()
    alone, calls = fit(kind, "sequential", sizes)
    printed = capsys.readouterr().out
    stacked, own_calls = fit(kind, stacks, sizes)
    own_printed = capsys.readouterr().out
    # Types of what is logged are the same, too.
    torch.testing.assert_close(stacked, alone, rtol=1e-9, atol=1e-9)
    assert rounded(str(own_calls)) == rounded(str(calls))
    assert rounded(own_printed) == rounded(printed)
    assert printed or calls
    return stacks.cause


class Prints(Telling):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if batch_idx % 2 == 0:
            print(f"round {self.current_epoch}, batch {batch_idx}: {loss:.3f}", end=";\n")
            print("sizes", batch[0].shape, loss.item(), loss.detach())
        self.print("loss {:.2f} of {}".format(loss, "a batch"))
        return loss


class TellsItsLogger(Telling):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        assert self.logger is not None
        self.log("shown", loss, on_step=True)
        self.log("of class 1", (batch[1] == 1).sum(), on_step=True)
        self.logger.experiment.add_scalar("loss", loss, self.global_step, walltime=batch_idx)
        for logger in self.loggers:
            if isinstance(logger, Recorder):
                logger.log_metrics({"loss": loss.item()}, step=batch_idx)
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        gradient = self.layers[0].weight.grad
        self.logger.experiment.add_histogram("gradient", gradient)  # type: ignore[union-attr]


class TellsScores(Telling):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.logger.experiment.add_histogram("scores", self.layers(batch[0]))  # type: ignore[union-attr]
        return super().training_step(batch, batch_idx)


class LogsByANameWithANumber(Telling):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log(f"loss of batch {batch_idx}", loss)
        print(f"batch {batch_idx}")
        return loss


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (Prints, SIZES),
        (TellsItsLogger, SIZES),
        (TellsScores, SIZES),
        pytest.param(TellsScores, (8, 8, 8), marks=LONG),
        pytest.param(LogsByANameWithANumber, SIZES, marks=LONG),
    ],
)
def test_others_are_told_the_same(kind: type[Telling], sizes: tuple[int, ...], capsys: Any) -> None:
    assert ends_alike(kind, capsys, sizes) is None


def test_each_batch_is_told_once(capsys: Any) -> None:
    fit(Prints, "vectorized")
    printed = capsys.readouterr().out
    # Clients of 8, 12 and 6 samples take 2, 3 and 2 batches of four, in each of two rounds.
    assert re.findall(r"round (\d)", printed) == list("00001111")
    assert sorted(re.findall(r"batch (\d):", printed)) == list("00000022")
    assert printed.count("of a batch") == 14


class AsksItsLogger(Telling):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        print("a step")
        return loss * self.logger.number  # type: ignore[union-attr]


class UsesWhatALoggerReturns(Telling):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.logger.experiment.calls.append(("own", batch_idx))  # type: ignore[union-attr]
        return loss * (1 if self.logger.experiment.calls.count(3) else 2)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (AsksItsLogger, "object that is no tensor"),
        (UsesWhatALoggerReturns, "reads `logger.experiment.calls.count(...)`, "),
    ],
)
def test_steps_that_ask_loggers_train_one_after_the_other(kind: type[Telling], cause: str, capsys: Any) -> None:
    assert cause in str(ends_alike(kind, capsys))
