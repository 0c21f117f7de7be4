"""Parts that cannot work together, and functions of the round or of the staleness that fail late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from helpers.algorithms import public
from helpers.toys import Quadratic, fit_quadratic, quadratic_clients

from fl_lightning import MIFA, DynamicWeightFedBuff, FedAdagrad, FedAdam, FedAvg, FedDF, Federated, FedNova, FedYogi
from fl_lightning.parts import AdapterMean, AdapterStack, ClientResult, Exchange, StackMessages

TWO = quadratic_clients(a=[1.0] * 2, c=[1.0, 2.0], sizes=[1, 2])


@pytest.mark.parametrize("value", [None, -1.0, 0.0, float("nan")])
def test_a_function_of_the_round_is_checked_in_its_round(value: Any) -> None:
    module = Quadratic(0.5)
    with pytest.raises((TypeError, ValueError), match=r"lr\(2\)` of (Mixing|Momentum|Adaptive|TorchServer)"):
        fit_quadratic(FedAvg(2, server_lr=[0.5, 0.5, value].__getitem__), module, TWO, rounds=3)


def test_a_function_of_the_round_is_called_in_its_round_alone() -> None:
    asked: list[int] = []
    callback = FedAvg(2, server_lr=lambda number: asked.append(number) or 1.0)  # type: ignore[func-returns-value]
    asked.clear()
    fit_quadratic(callback, Quadratic(0.5), TWO, rounds=3)
    assert asked == [0, 1, 2]


class NoSamples(Exchange):
    def upload(self, result: ClientResult) -> ClientResult:
        return replace(result, task=replace(result.task, num_samples=0))


MESSAGES = StackMessages()
MAKERS: list[Callable[..., Any]] = [
    *(FedAvg, FedNova, lambda m, **how: DynamicWeightFedBuff(2, m, **how)),
    *(
        lambda m, **how: FedDF(Quadratic(0.5), public(), m, **how),
        lambda m, **how: Federated(m, aggregation=AdapterMean(), **how),
    ),
    lambda m, exchange: Federated(m, exchange=[MESSAGES, exchange], aggregation=AdapterStack(MESSAGES)),
]


@pytest.mark.parametrize("make", MAKERS)
def test_the_server_stays_where_no_client_has_a_weight(make: Callable[..., Any]) -> None:
    callback = make(2, exchange=NoSamples())
    assert float(fit_quadratic(callback, Quadratic(0.5), TWO, rounds=3)) == 0.0
    assert callback.algorithm.server.moves == 0


def test_the_server_stays_where_no_client_has_a_learning_rate() -> None:
    assert float(fit_quadratic(MIFA(2), Quadratic(0.0, 2.0), TWO, rounds=2)) == 2.0


@pytest.mark.parametrize("make", [FedAdagrad, FedAdam, FedYogi])
def test_a_server_whose_second_moment_is_infinite_does_not_stop_in_silence(make: Callable[..., Any]) -> None:
    huge = quadratic_clients(a=[1.0], c=[1e160])
    with pytest.raises(FloatingPointError, match=r"second moment of Adaptive\(.*up to 5e\+159\."):
        fit_quadratic(make(1), Quadratic(lr=0.5), huge, rounds=1)
