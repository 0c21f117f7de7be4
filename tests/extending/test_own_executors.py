"""An executor hands in each result once."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic

from fl_lightning import FedAvg, FedBuff, RADFed
from fl_lightning.executors import Executor

CLIENTS = clients_that_reach([[2.0], [4.0], [6.0]], [1, 1, 1])
MAKE: dict[str, Any] = {
    "FedAvg": lambda executor: FedAvg(1.0, executor=executor),
    "RADFed": lambda executor: RADFed(2, 1.0, executor=executor),
    "FedBuff": lambda executor: FedBuff(3, 3, speeds=[1, 1, 1], executor=executor),
}


class Twice(Executor):
    """Hands in the first result a second time, at once or when all others are there."""

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once

    def run(self, tasks: Any, clients: Any, algorithm: Any) -> None:
        results = [clients.train(task, algorithm.start(task)) for task in tasks]
        for result in [results[0], *results] if self.at_once else [*results, results[0]]:
            algorithm.receive(result)


class Kept(Executor):
    """Hands in a result of the first round again."""

    def __init__(self) -> None:
        self.kept: Any = None

    def run(self, tasks: Any, clients: Any, algorithm: Any) -> None:
        for task in tasks:
            result = clients.train(task, algorithm.start(task))
            self.kept = self.kept or result
            algorithm.receive(result)
        if self.kept.task not in tasks:
            algorithm.receive(self.kept)


class Skipping(Executor):
    def run(self, tasks: Any, clients: Any, algorithm: Any) -> None:
        for task in tasks[1:]:
            algorithm.receive(clients.train(task, algorithm.start(task)))


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_result_that_comes_twice_is_refused(name: str, at_once: bool) -> None:
    with pytest.raises(RuntimeError, match=r"The executor handed in two results for client \d, in slot 0"):
        fit_quadratic(MAKE[name](Twice(at_once)), Quadratic(1.0, [0.0]), CLIENTS, 1)


@pytest.mark.parametrize("name", MAKE)
def test_a_result_of_another_round_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"The executor handed in a result of another round for client \d"):
        fit_quadratic(MAKE[name](Kept()), Quadratic(1.0, [0.0]), CLIENTS, 2)


@pytest.mark.parametrize("name", MAKE)
def test_a_result_that_never_comes_is_missed(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"The executor handed in no result for 1 of 3 tasks of the round"):
        fit_quadratic(MAKE[name](Skipping()), Quadratic(1.0, [0.0]), CLIENTS, 1)
