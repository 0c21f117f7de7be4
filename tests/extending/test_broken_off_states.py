"""A part that changes its state in mid-round: a round that breaks off takes it back, and so does a checkpoint there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
from helpers.own_states import FadingMomentum
from helpers.toys import Quadratic, clients_that_reach, quiet_trainer
from torch import Tensor

from fl_lightning import FedBuff, Federated, TensorDataModule
from fl_lightning.parts import (
    Aggregation,
    ClientResult,
    ClientSampler,
    Correction,
    Exchange,
    LocalObjective,
    Redistribution,
    ServerOptimizer,
)

CLIENTS = clients_that_reach([[2.0], [4.0], [9.0]], [1, 1, 1])


class Counts:
    """Keeps and saves a count, and a list of it."""

    def __init__(self) -> None:
        self.count, self.seen = 0, list[int]()

    def go_on(self) -> int:
        self.count += 1
        self.seen.append(self.count)
        return self.count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.seen = state["count"], list(state["seen"])


class InTurn(Counts, ClientSampler):
    def cohort_size(self, num_clients: int) -> int:
        return 2

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> Any:
        return [self.go_on() % num_clients, (self.count + 1) % num_clients]


class FadingUpload(Counts, Exchange):
    def upload(self, result: ClientResult) -> ClientResult:
        return result.with_delta(result.delta / self.go_on())


class FadingStart(Counts, Exchange):
    def on_round_start(self, round_index: int) -> None:
        self.go_on()

    def upload(self, result: ClientResult) -> ClientResult:
        return result.with_delta(result.delta / self.count)


class Pull(Counts, LocalObjective):
    def correction(self, client: Any) -> Correction:
        return Correction(pull=1 / (1 + self.go_on()))


class FadingMerge(Counts, Aggregation):
    def __init__(self) -> None:
        super().__init__()
        self.results: list[Tensor] = []

    def update(self, result: ClientResult) -> None:
        self.results.append(result.delta / self.go_on())

    def merge(self, model: Tensor) -> Tensor:
        results, self.results = self.results, []
        return model + sum(results) / self.go_on()


class FadingStep(Counts, ServerOptimizer):
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return model + (aggregate - model) / self.go_on()


class Cycle(Redistribution):
    """Has a state of circulating models on all processes."""

    rounds = 0

    def on_round_end(self) -> None:
        super().on_round_end()
        self.rounds += 1

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.rounds = state["rounds"]


SYNCHRONOUS: dict[str, Callable[[], Any]] = {
    "draw": lambda: Federated(sampler=InTurn(), executor="sequential"),
    "upload": lambda: Federated(1.0, exchange=FadingUpload(), executor="sequential"),
    "on_round_start": lambda: Federated(1.0, exchange=FadingStart(), executor="sequential"),
    "correction": lambda: Federated(1.0, objective=Pull(), executor="sequential"),
    "merge": lambda: Federated(1.0, aggregation=FadingMerge(), executor="sequential"),
    "step": lambda: Federated(1.0, server=FadingStep(), executor="sequential"),
    "schedule": lambda: Federated(1.0, schedule=Cycle(3), executor="sequential"),
}
ASYNCHRONOUS: dict[str, Callable[[], Any]] = {
    "of a library's class": lambda: FedBuff(1, 3, speeds=[1, 2, 3], server=FadingMomentum(0.5), executor="sequential"),
    "buffered merge": lambda: FedBuff(2, 3, speeds=[1, 2, 3], aggregation=FadingMerge(), executor="sequential"),
    "buffered step": lambda: FedBuff(1, 3, speeds=[1, 2, 3], server=FadingStep(), executor="sequential"),
    "buffered upload": lambda: FedBuff(2, 3, speeds=[1, 2, 3], exchange=FadingUpload(), executor="sequential"),
}
ALL = {**SYNCHRONOUS, **ASYNCHRONOUS}


class Breaks(L.Callback):
    """Saves a checkpoint after the second client of round 2, and breaks the round off."""

    def __init__(self, path: Path) -> None:
        self.path, self.clients = path, 0

    def on_client_end(self, trainer: L.Trainer, pl_module: L.LightningModule, result: ClientResult) -> None:
        if trainer.current_epoch == 1:
            self.clients += 1
            if self.clients == 2:
                trainer.save_checkpoint(self.path)
                raise ArithmeticError("broken by the test")


def trained(callback: Any, *more: L.Callback, path: Path | None = None) -> float:
    module = Quadratic(0.5, [0.0])
    trainer = quiet_trainer(max_epochs=4, callbacks=[callback, *more])
    data = TensorDataModule(CLIENTS, batch_size=None)
    if more:
        with pytest.raises(ArithmeticError):
            trainer.fit(module, datamodule=data)
    trainer.fit(module, datamodule=data, ckpt_path=path)
    return float(module.w)


@pytest.mark.parametrize("name", ALL)
def test_a_round_that_breaks_off_leaves_no_trace(name: str, tmp_path: Path) -> None:
    whole = trained(ALL[name]())
    assert trained(ALL[name](), Breaks(tmp_path / "mid.ckpt")) == whole
    assert trained(ALL[name](), path=tmp_path / "mid.ckpt") == whole


class Failing(Exchange):
    """Fails once where round 2 is planned, after other parts have begun it."""

    def __init__(self, error: type[BaseException] | None) -> None:
        self.error = error

    def on_round_start(self, round_index: int) -> None:
        if round_index == 1 and self.error is not None:
            error, self.error = self.error, None
            raise error("broken by the test")

    def upload(self, result: ClientResult) -> ClientResult:
        return replace(result)


class FailingDraw(InTurn):
    """Fails once where round 2 is planned, after its state has changed."""

    def __init__(self, error: type[BaseException] | None) -> None:
        super().__init__()
        self.error = error

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> Any:
        drawn = super().draw(num_clients, rng, available)
        if self.count == 2 and self.error is not None:
            error, self.error = self.error, None
            raise error("broken by the test")
        return drawn


class SavesOnError(L.Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        trainer.save_checkpoint(self.path)


PLANNED: dict[str, Callable[[Any], Any]] = {
    "draw": lambda error: Federated(sampler=FailingDraw(error), executor="sequential"),
    "another's draw": lambda error: Federated(
        sampler=FailingDraw(error), exchange=FadingStart(), aggregation=FadingMerge(), executor="sequential"
    ),
    "on_round_start": lambda error: Federated(1.0, exchange=[FadingStart(), Failing(error)], executor="sequential"),
    "circulating": lambda error: Federated(
        1.0, schedule=Cycle(3), exchange=[FadingStart(), Failing(error)], executor="sequential"
    ),
    "buffered": lambda error: FedBuff(
        2, 3, speeds=[1, 2, 3], exchange=[FadingStart(), Failing(error)], server=FadingStep(), executor="sequential"
    ),
}


@pytest.mark.parametrize("error", [ArithmeticError, KeyboardInterrupt])
@pytest.mark.parametrize("name", PLANNED)
def test_a_round_whose_plan_fails_leaves_no_trace(name: str, error: type[BaseException], tmp_path: Path) -> None:
    whole = trained(PLANNED[name](None))
    callback, module, data = PLANNED[name](error), Quadratic(0.5, [0.0]), TensorDataModule(CLIENTS, batch_size=None)
    trainer = quiet_trainer(max_epochs=4, callbacks=[callback, SavesOnError(tmp_path / "mid.ckpt")])
    with pytest.raises((error, SystemExit)):  # Lightning makes one of Ctrl-C
        trainer.fit(module, datamodule=data)
    assert trainer.current_epoch == 1
    trainer.fit(module, datamodule=data)
    assert float(module.w) == whole
    assert trained(PLANNED[name](None), path=tmp_path / "mid.ckpt") == whole
    counted = [part for part in callback.algorithm.all_parts if isinstance(part, Counts)]
    assert all(part.seen == list(range(1, part.count + 1)) for part in counted)
    of_rounds = [part.count for part in counted if isinstance(part, InTurn | FadingStart)]
    assert of_rounds == [4] * len(of_rounds) and of_rounds  # one in each round
