"""Executors as objects: a user's own trains like the sequential one, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.algorithms import ALGORITHMS, Net, data
from helpers.toys import Quadratic, fit_clients, quadratic_clients, quiet_trainer
from lightning.pytorch.callbacks import Callback

from fl_lightning import FedAvg
from fl_lightning.clients import LocalTraining
from fl_lightning.executors import Executor, SequentialExecutor
from fl_lightning.parts import Algorithm, ClientResult, Task


class OneByOne(Executor):
    """The reference, written by a user, with a count of what it trained."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.trained = 0

    def on_fit_start(self, training: LocalTraining, algorithm: Algorithm) -> None:
        self.events.append("start")

    def run(self, tasks: Sequence[Task], training: LocalTraining, algorithm: Algorithm) -> Iterator[ClientResult]:
        for task in tasks:
            self.trained += 1
            yield training.train(task, algorithm.received(task))

    def on_fit_end(self) -> None:
        self.events.append("end")

    def state_dict(self) -> dict[str, Any]:
        return {"trained": self.trained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trained = state["trained"]


@pytest.mark.parametrize("name", ["FedAvg-failing", "Scaffold-1", "RADFed", "FedBuff"])
def test_an_executor_of_ones_own_trains_like_the_sequential_one(name: str) -> None:
    ends = []
    for executor in ("sequential", SequentialExecutor(), OneByOne()):
        net = Net()
        trainer = quiet_trainer(max_epochs=4, callbacks=[ALGORITHMS[name](seed=1, executor=executor)])
        trainer.fit(net, datamodule=data())
        ends.append((net.state_dict(), dict(trainer.callback_metrics), trainer.global_step))
    for weights, metrics, steps in ends[1:]:
        assert steps == ends[0][2] > 0
        assert metrics == ends[0][1]
        for key, value in ends[0][0].items():
            assert torch.equal(weights[key], value), key


CLIENTS = quadratic_clients([1.0] * 3, [1.0] * 3)


class Raises(Callback):
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        raise RuntimeError("in a client")


def test_an_executor_hears_of_the_fits_start_and_end() -> None:
    executor = OneByOne()
    fit_clients(FedAvg(1.0, executor=executor), Quadratic(0.1), CLIENTS, 2)
    assert executor.events == ["start", "end"]
    assert executor.trained == 6
    with pytest.raises(RuntimeError, match="in a client"):
        fit_clients(FedAvg(1.0, executor=executor), Quadratic(0.1), CLIENTS, 2, Raises())
    assert executor.events == ["start", "end"] * 2


def test_an_executors_state_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    for rounds, ckpt_path in ((2, None), (5, tmp_path / "last.ckpt")):
        executor = OneByOne()
        trainer = fit_clients(FedAvg(2, executor=executor), Quadratic(0.1), CLIENTS, rounds, ckpt_path=ckpt_path)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        assert executor.trained == 2 * rounds


def test_another_executor_counts_from_the_next_fit() -> None:
    callback, executor = FedAvg(1.0), OneByOne()
    assert callback.executor == "auto"
    callback.executor = executor
    assert callback.executor is executor
    fit_clients(callback, Quadratic(0.1), CLIENTS)
    assert executor.trained == 3
