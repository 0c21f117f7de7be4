"""Parts that cannot work together, and functions of the round or of the staleness that fail late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.toys import Quadratic, fit_quadratic, quadratic_clients

from fl_lightning import (
    AggregationCallback,
    DynamicWeightFedBuff,
    FedAdagrad,
    FedAdam,
    FedAsync,
    FedAvg,
    FedBuff,
    FedDyn,
    Federated,
    FedNova,
    FedProx,
    FedYogi,
    QFedAvg,
    RADFed,
)
from fl_lightning.parts import (
    ClientResult,
    ClientSampler,
    CurrentMean,
    DynamicRegularizer,
    DynamicServer,
    Exchange,
    StaleMean,
    TrimmedMean,
    WeightedMean,
)

FOUR = quadratic_clients(a=[1.0] * 4, c=[1.0, 2.0, 3.0, 4.0], sizes=[1, 2, 3, 4])


def fit(callback: AggregationCallback, rounds: int = 3) -> float:
    return float(fit_quadratic(callback, Quadratic(lr=0.5), FOUR, rounds))


@pytest.mark.parametrize("objective", [None, DynamicRegularizer(0.2)], ids=["none", "another"])
def test_feddyn_s_server_needs_its_objective(objective: DynamicRegularizer | None) -> None:
    with pytest.raises(ValueError, match=r"DynamicServer needs its `objective`, .*Give the same DynamicRegularizer"):
        Federated(1.0, objective=objective, server=DynamicServer(DynamicRegularizer(0.1)))


def test_feddyn_from_its_parts_is_feddyn() -> None:
    objective = DynamicRegularizer(0.1)
    parts = Federated(1.0, objective=objective, server=DynamicServer(objective), aggregation=WeightedMean("uniform"))
    assert fit(parts) == fit(FedDyn(0.1, 1.0))


@pytest.mark.parametrize("mean", [CurrentMean, StaleMean])
def test_a_mean_over_all_clients_needs_models_of_single_clients(mean: type) -> None:
    with pytest.raises(ValueError, match=rf"`aggregation` cannot be {mean.__name__}\(\), a mean over all clients"):
        RADFed(2, 2, aggregation=mean())


@pytest.mark.parametrize("how", [{}, {"wait_for_flush": False}, {"flush_rounds": True}])
def test_a_mean_over_all_clients_counts_no_client_twice(how: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"may hold several results of one client. Give `once_per_buffer=True`"):
        FedBuff(3, 2, aggregation=CurrentMean(), **how)


@pytest.mark.parametrize("how", [{"once_per_buffer": True}, {"wait_for_flush": True}])
def test_a_mean_over_all_clients_takes_a_buffer_of_different_clients(how: dict[str, bool]) -> None:
    # clients 0 and 1 reach halfway to their optima, 0.5 and 1; clients 2 and 3 count with the server's 0
    callback = FedBuff(2, 2, speeds=[100, 90, 1, 1], aggregation=CurrentMean("uniform"), **how)
    assert fit(callback, rounds=1) == pytest.approx((0.5 + 1.0) / 4, abs=1e-15)


def test_fedasync_takes_a_mean_over_all_clients() -> None:
    callback = FedAsync(1, speeds=[100, 1, 1, 1], aggregation=CurrentMean("uniform"))
    assert fit(callback, rounds=1) == pytest.approx(0.5 / 4, abs=1e-15)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda table: FedProx(table, 2), "mu"),
        (lambda table: FedAvg(2, server_lr=table), "server_lr"),
        (lambda table: FedAsync(2, mixing=table), "mixing"),
    ],
)
def test_a_function_of_the_round_that_ends_too_early_is_named(make: Callable[[Any], Any], name: str) -> None:
    text = rf"`{name}` is a function that fails for 2: IndexError: .* called with the number of each round, from 0"
    with pytest.raises(TypeError, match=text):
        fit(make([0.5, 0.25].__getitem__))


@pytest.mark.parametrize(
    ("table", "error", "text"),
    [
        ([0.5, 0.25].__getitem__, TypeError, "`server_lr` is a function that fails for 2: IndexError"),
        ((0.5, 0.25).__getitem__, TypeError, "`server_lr` is a function that fails for 2: IndexError"),
        ({0: 0.5, 2: 0.25}.__getitem__, TypeError, "`server_lr` is a function that fails for 1: KeyError"),
        ({0: 0.5, 2: 0.25}.get, ValueError, r"`server_lr\(1\)` must be a finite number greater than 0, got None"),
        ([0.5, 0.5, -1.0].__getitem__, ValueError, r"`server_lr\(2\)` must be a finite number greater than 0, got -1"),
    ],
)
def test_a_table_of_rounds_is_looked_at_before_training(table: Any, error: type[Exception], text: str) -> None:
    module = Quadratic(0.5)
    with pytest.raises(error, match=text):
        fit_quadratic(FedAvg(2, server_lr=table), module, quadratic_clients([1.0] * 2, [1.0, 2.0]), rounds=3)
    assert not module.seen


def test_a_function_of_the_round_is_called_in_its_round_alone() -> None:
    asked: list[int] = []
    callback = FedAvg(2, server_lr=lambda number: asked.append(number) or 1.0)  # type: ignore[func-returns-value]
    asked.clear()
    fit_quadratic(callback, Quadratic(0.5), quadratic_clients([1.0] * 2, [1.0, 2.0]), rounds=3)
    assert asked == [0, 1, 2]


@pytest.mark.parametrize("make", [FedAsync, FedBuff])
def test_a_table_of_staleness_that_ends_too_early_is_named(make: type) -> None:
    size = {"buffer_size": 1} if make is FedBuff else {}
    callback = make(clients_per_round=4, speeds=[100, 90, 1, 60], staleness=[1.0, 0.5].__getitem__, **size)
    with pytest.raises(TypeError, match=r"`staleness` is a function that fails for 2: IndexError: .*from 0"):
        fit(callback)


def test_staleness_may_be_a_table() -> None:
    table = [(1 + late) ** -0.5 for late in range(50)]
    for usual in (0, 1, 2.0):
        own, named = (
            FedBuff(2, 4, speeds=[100, 60, 40, 20], staleness=each, average_staleness=usual)
            for each in (table.__getitem__, "polynomial")
        )
        assert fit(own) == fit(named)


def test_weights_are_not_divided_by_0() -> None:
    text = r"`average_staleness` must be one at which `staleness` gives a weight greater than 0, got 1"
    with pytest.raises(ValueError, match=text):
        FedBuff(2, staleness=lambda late: float(late == 0), average_staleness=1)


class Sized(Exchange):
    def __init__(self, samples: float) -> None:
        self.samples = samples

    def upload(self, result: ClientResult) -> ClientResult:
        return replace(result, task=replace(result.task, num_samples=self.samples))  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [FedAvg, FedNova, lambda m, **how: DynamicWeightFedBuff(2, m, **how)])
def test_weights_whose_sum_is_infinite_are_refused(make: Callable[..., AggregationCallback]) -> None:
    with pytest.raises(ValueError, match=r"`task.num_samples` is 1e\+308; it must be .* at most 1e100"):
        fit(make(2, exchange=Sized(1e308)))


@pytest.mark.parametrize("make", [FedAvg, FedNova, lambda m, **how: DynamicWeightFedBuff(2, m, **how)])
def test_the_server_stays_where_no_client_has_a_weight(make: Callable[..., AggregationCallback]) -> None:
    assert fit(make(2, exchange=Sized(0))) == 0.0


def test_very_large_weights_are_weights() -> None:
    assert fit(FedAvg(1.0, exchange=Sized(1e99))) == pytest.approx(fit(FedAvg(1.0, weighting="uniform")), abs=1e-15)


@pytest.mark.parametrize("make", [FedAdagrad, FedAdam, FedYogi])
def test_a_server_whose_second_moment_is_infinite_does_not_stop_in_silence(make: Callable[..., Any]) -> None:
    huge = quadratic_clients(a=[1.0], c=[1e160])
    with pytest.raises(FloatingPointError, match=r"square is no number any more. The server would never move again"):
        fit_quadratic(make(1), Quadratic(lr=0.5), huge, rounds=1)


def test_a_client_that_is_left_out_for_its_loss_is_not_told_to_have_an_invalid_model() -> None:
    clients = quadratic_clients(a=[1.0, 1.0], c=[1.0, 1e160])  # a finite gradient, but an infinite loss
    text = r"client 1 was left out: its model has NaN or infinite values, or its loss is NaN or infinite. Lower"
    with pytest.warns(UserWarning, match=text):
        weights = fit_quadratic(QFedAvg(0, 1.0), Quadratic(lr=0.5), clients, rounds=1)
    assert float(weights) == 0.5


def test_a_sampler_that_draws_with_replacement_is_shown_what_it_drew() -> None:
    class Replacing(ClientSampler):
        def cohort_size(self, num_clients: int) -> int:
            return 2

        def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> np.ndarray:
            return np.array([3, 3])

    with pytest.raises(ValueError, match=r"got \[3, 3\]. Each client trains once in a round: draw without replacement"):
        fit(FedAvg(sampler=Replacing()))


class Growing(ClientSampler):
    """Draws one client in the first round, two in the second one."""

    size = 1

    def on_round_start(self, round_index: int) -> None:
        self.size = round_index + 1

    def cohort_size(self, num_clients: int) -> int:
        return self.size

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> np.ndarray:
        return np.arange(self.size)


def test_errors_on_one_model_and_one_update_are_in_the_singular() -> None:
    with pytest.raises(ValueError, match=r"1 model circulates since .*, but 2 clients train now.* for the 1 round up"):
        fit(RADFed(2, sampler=Growing()))
    with pytest.raises(ValueError, match=r"at least 3 updates to merge, but there is 1\. Let more"):
        fit(FedAvg(1, aggregation=TrimmedMean(1)))
