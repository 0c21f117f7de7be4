"""What parts of a user's are given, and what becomes of what they return: numbers by hand.

Two clients reach their optima 2 and 4 in one step, so that a round of FedAvg moves the server to their mean, 3. That
parts resume, roll back and train on several processes is the contract of ``tests/contracts/test_parts.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contracts.user_parts import Claims, PlayedBy, Together
from helpers.toys import Fixed, Quadratic, clients_that_reach, fit_clients, fit_quadratic
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from fl_lightning import FedAvg, FedBuff, FedDyn, Federated, PersonalParameters, RADFed, Scaffold, parts
from fl_lightning.data import ClientDatasetsModule, TensorDataModule
from fl_lightning.testing import fits
from fl_lightning.testing.processes import on_two_processes

CLIENTS = clients_that_reach([[2.0], [4.0]], [1, 1])


def fit(callback: Any, rounds: int = 1, *, lr: float = 1.0) -> float:
    return float(fit_quadratic(callback, Quadratic(lr, [0.0]), CLIENTS, rounds))


# ---- what a part returns ----


class Step(parts.ServerOptimizer):
    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        self.function = function

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return self.function(model, aggregate)


class Merge(parts.Aggregation):
    """A function of the server's parameters and the clients' mean."""

    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        self.function = function

    def merge(self, model: Tensor, results: Sequence[parts.ClientResult]) -> Tensor | None:
        return self.function(model, torch.stack([result.parameters for result in results]).mean(0))


class Way(parts.Exchange):
    """Each method is a function, or as in the base class."""

    def __init__(self, **functions: Callable[[Any], Any]) -> None:
        self.functions = functions

    def download(self, task: Any, model: Tensor) -> Tensor:
        return self._call("download", model)

    def upload(self, result: parts.ClientResult) -> parts.ClientResult:
        return self._call("upload", result)

    def on_aggregate(self, aggregate: Tensor) -> Tensor:
        return self._call("on_aggregate", aggregate)

    def on_publish(self, model: Tensor) -> Tensor:
        return self._call("on_publish", model)

    def _call(self, name: str, given: Any) -> Any:
        return self.functions.get(name, lambda given: given)(given)


class Plan(parts.Schedule):
    """A synchronous schedule; where clients start and what is shown are functions of the server's model."""

    def __init__(self, **functions: Callable[[Tensor], Any]) -> None:
        self.functions = functions

    def sent(self, task: parts.Task, server: parts.Server) -> Tensor:
        return self.functions.get("sent", lambda model: model)(server.model)

    def start(self, task: parts.Task, received: Tensor) -> Tensor:
        return self.functions.get("start", lambda model: model)(received)

    def play(self, tasks: Sequence[parts.Task], server: parts.Server) -> Any:
        for result in (yield tasks):
            server.take(result)
        server.move()
        return self.functions.get("play", lambda model: model)(server.model)


Of = Callable[[Tensor], Any]
#: A part that returns what a function makes of a vector, by the name that errors have for it.
RETURNING: dict[str, Callable[[Of], Any]] = {
    "Step.step": lambda of: Federated(1.0, server=Step(lambda model, aggregate: of(aggregate))),
    "Merge.merge": lambda of: FedAvg(1.0, aggregation=Merge(lambda model, mean: of(mean))),
    "Way.download": lambda of: FedAvg(1.0, exchange=Way(download=of)),
    "Way.upload": lambda of: FedAvg(1.0, exchange=Way(upload=lambda result: result.with_vector(of(result.vector)))),
    "Way.on_aggregate": lambda of: FedAvg(1.0, exchange=Way(on_aggregate=of)),
    "Way.on_publish": lambda of: FedAvg(1.0, exchange=Way(on_publish=of)),
    "Plan.sent": lambda of: Federated(1.0, schedule=Plan(sent=of)),
    "Plan.start": lambda of: Federated(1.0, schedule=Plan(start=of)),
    "Plan.play": lambda of: Federated(1.0, schedule=Plan(play=of)),
}


@pytest.mark.parametrize("name", RETURNING)
def test_a_vector_of_another_length_or_with_nan_is_refused_and_the_round_discarded(name: str) -> None:
    module = Quadratic(1.0, [0.5])
    with pytest.raises((TypeError, ValueError), match=name):
        fit_quadratic(RETURNING[name](lambda vector: vector.repeat(2)), module, CLIENTS, 1)
    assert module.w.tolist() == [0.5]
    before_training = name in ("Way.download", "Plan.sent", "Plan.start")  # the clients are left out
    with pytest.warns(match="left out") if before_training else pytest.raises(FloatingPointError, match="NaN"):
        fit_quadratic(RETURNING[name](lambda vector: vector / 0), module, CLIENTS, 1)
    assert module.w.tolist() == [0.5]


@pytest.mark.parametrize("name", RETURNING)
def test_the_server_keeps_its_type_whatever_a_part_returns(name: str) -> None:
    module, clients = Quadratic(1.0, [0.0]).float(), [(a.float(), c.float()) for a, c in CLIENTS]
    callback, dtypes, received = RETURNING[name](lambda vector: vector.double()), set(), Callback()
    received.on_client_start = lambda trainer, module, client: dtypes.add(client.received.dtype)  # type: ignore[attr-defined]
    assert float(fit_quadratic(callback, module, clients, 2, received)) == 3.0
    assert dtypes == {torch.float32}
    assert callback.algorithm.server.model.dtype == callback.algorithm.run.shown.dtype == torch.float32


@pytest.mark.parametrize(("method", "end"), [("upload", 4), ("download", 2.5), ("on_aggregate", 5), ("on_publish", 5)])
def test_results_pass_exchanges_from_first_to_last_and_models_from_last_to_first(method: str, end: float) -> None:
    # Clients go from 0 half the way to 2 and 4, by 1.5 in the mean. Upload: 2 * 1.5 + 1 = 4. On the server:
    # 2 * (1.5 + 1) = 5. Download: both begin at 2 * (0 + 1) = 2, and go to 2 and 3.
    def way(of: Of) -> Way:
        return Way(**{method: (lambda result: result.with_vector(of(result.vector))) if method == "upload" else of})

    exchange = [way(lambda vector: 2 * vector), way(lambda vector: vector + 1)]
    assert fit(FedAvg(1.0, exchange=exchange), lr=0.5) == end


class Holding(parts.Exchange):
    """Lets another exchange do the work."""

    def __init__(self, inner: parts.Exchange) -> None:
        self.inner = inner

    def upload(self, result: parts.ClientResult) -> parts.ClientResult:
        return self.inner.upload(result)


def test_an_exchange_draws_by_its_place_also_where_another_one_holds_it() -> None:
    clients = clients_that_reach([[2.0] * 30, [4.0] * 30], [1, 1])
    ends = []
    for last in (parts.RandomK(0.3), Holding(parts.RandomK(0.3))):
        callback = FedAvg(1.0, exchange=[parts.Clip(1e9), last])
        ends.append(fit_quadratic(callback, Quadratic(1.0, [0.0] * 30), clients, 1).tolist())
    assert ends[0] == ends[1]


def test_a_buffer_that_an_aggregation_makes_nothing_of_does_not_move_the_server() -> None:
    callback = FedBuff(2, 2, aggregation=Merge(lambda model, mean: None))
    assert fit(callback) == 0.0
    assert [arrival.moved for arrival in callback.algorithm.report.arrivals] == [False, False]


@pytest.mark.parametrize("drawn", [[1, 1], [0, 2], [-1, 0], None, [0.5, 1.0]], ids=str)
def test_a_cohort_is_made_of_different_clients(drawn: Any) -> None:
    module = Quadratic(1.0, [7.0])
    with pytest.raises(ValueError, match=r"Fixed\.draw"):
        fit_quadratic(FedAvg(sampler=Fixed(drawn)), module, CLIENTS, 1)
    assert (module.w.tolist(), module.seen) == ([7.0], [])


def test_a_cohort_may_be_any_sequence_and_empty() -> None:
    for drawn in ([1, 0], (1, 0), np.array([1, 0], dtype=np.uint8)):
        assert fit(FedAvg(sampler=Fixed(drawn))) == 3.0
    assert fit(FedAvg(sampler=Fixed([]))) == 0.0
    with pytest.raises(ValueError, match=r"Fixed\.draw"):
        fit(FedAvg(sampler=Fixed([0, 1]), participation=parts.Participation(available=lambda index: [0])))


class Sum(parts.Exchange):
    """Divides the sum of updates by another number."""

    def __init__(self, divisor: Any) -> None:
        self.divisor = divisor

    def on_sum(self, total: Tensor, count: float) -> Any:
        return total, self.divisor


@pytest.mark.parametrize(("divisor", "expected"), [(0, 0.0), (2, 3.0), (np.float32(4), 1.5)])
def test_a_sum_is_divided_by_the_exchange_s_number(divisor: Any, expected: float) -> None:
    # the updates 2 and 4 add up to 6
    assert fit(FedAvg(1.0, weighting="uniform", exchange=Sum(divisor))) == expected


class Equal(parts.Exchange):
    """All clients send what the first one does."""

    def collude(self, results: Any) -> Any:
        return [result.with_delta(results[0].delta) for result in results]


def test_what_clients_agree_on_replaces_what_they_send() -> None:
    assert fit(FedAvg(1.0, exchange=Equal())) == 2.0


def test_a_client_with_an_invalid_loss_is_left_out() -> None:
    class Loss(parts.LocalObjective):
        def loss_of(self, task: parts.Task) -> float:
            return math.nan if task.client == 1 else 1.0

    with pytest.warns(UserWarning, match=r"clients \[1\]"):
        assert fit(Federated(1.0, objective=Loss())) == 2.0


class Asks(parts.LocalObjective):
    """Notes the targets and the loss of a client before its training."""

    def correction(self, client: Any) -> None:
        self.found = sorted(client.targets().tolist()), client.loss()


def test_an_objective_is_told_of_all_batches_of_a_client() -> None:
    # five samples in batches of two: c^2 / 2 is 0, 0.5, 2, 4.5 and 8 at 0
    optima = torch.arange(5.0, dtype=torch.float64)
    rows = [*zip(torch.ones_like(optima), optima, strict=True)]
    stored = TensorDataModule([(torch.ones_like(optima), optima)], batch_size=2)
    for data in (stored, ClientDatasetsModule([rows], batch_size=2)):
        fits.fit(Federated(1.0, objective=(objective := Asks())), Quadratic(1.0), data, 1)
        assert objective.found == ([0.0, 1.0, 2.0, 3.0, 4.0], 3.0)


# ---- what travels to the aggregation ----


class Sees(parts.Aggregation):
    """Notes what it gets, and lets the server stay."""

    def __init__(self) -> None:
        self.seen: list[parts.ClientResult] = []

    def merge(self, model: Tensor, results: Sequence[parts.ClientResult]) -> Tensor | None:
        self.seen += results


def test_a_circulating_model_has_the_sums_of_its_trainings_and_the_rest_of_the_last_one() -> None:
    aggregation = Sees()
    fit(RADFed(2, 1.0, exchange=Claims(), aggregation=aggregation, seed=1), 2)
    # both clients train both models or each its own one twice; clients 0 and 1 claim 1 and 2 samples, scores 4 and 1
    assert sum(result.num_samples for result in aggregation.seen) == 2 * (1 + 2)
    assert sorted(result.score or 0.0 for result in aggregation.seen) == [1.0, 4.0]
    assert [result.num_steps for result in aggregation.seen] == [2, 2]


# ---- states and vectors of clients ----


@pytest.mark.parametrize(
    ("make", "read", "expected"),
    [
        (  # each client's own model
            lambda: FedAvg(1.0, exchange=PersonalParameters("*"), seed=1),
            lambda callback, client: callback.exchange.of_client(client)["w"],
            [1.0, 2.0],
        ),
        # the gradient at 0, and -alpha times the way that the client went
        (lambda: Scaffold(1.0, seed=1), lambda callback, client: callback.client_control_variate(client), [-2.0, -4.0]),
        (lambda: FedDyn(0.5, 1.0, seed=1), lambda callback, client: callback.gradient(client), [-0.5, -1.0]),
    ],
    ids=["personal", "scaffold", "feddyn"],
)
def test_vectors_of_clients_are_where_the_clients_train(
    make: Any, read: Any, expected: list[float], tmp_path: Path
) -> None:
    def train(devices: int = 1, strategy: str = "auto") -> list[Any]:
        fit_clients(callback := make(), Quadratic(0.5, [0.0]), CLIENTS, devices=devices, strategy=strategy)
        found = []
        for client in range(2):
            try:
                found.append(float(read(callback, client)))
            except RuntimeError as error:  # it is on the other process
                found.append(str(error))
        return found

    assert train() == expected
    for rank, found in enumerate(on_two_processes(lambda: train(2, "ddp"), tmp_path)):
        assert found[rank] == expected[rank]
        assert f"client {1 - rank}" in found[1 - rank]


# ---- several processes ----


class AddedUp(parts.MeanAggregation):
    """Moves by a quarter of the sum of all updates, over all processes; adds them up once more, and counts clients."""

    def setup(self, federation: parts.Federation) -> None:
        self.here, self.seen = federation.zeros(), 0

    def weighted(self, result: parts.ClientResult) -> tuple[Tensor, float]:
        self.here, self.seen = self.here + result.delta, self.seen + 1
        return result.delta, 1.0

    def finish(self, model: Tensor, mean: Tensor, weight: float) -> Tensor:
        total = self.federation.sum_over_ranks(self.here)
        assert torch.equal(total, mean * weight)
        assert torch.equal(total, self.here) == (self.seen == 2)
        assert sum(self.federation.gather(self.seen)) == weight == 2
        total /= 4  # the sum is the caller's: writing to it changes nothing else
        self.here, self.seen = torch.zeros_like(total), 0
        return model + total


def test_sums_are_those_of_all_processes(tmp_path: Path) -> None:
    def train(devices: int, strategy: str) -> float:
        module = Quadratic(1.0, [0.0])
        fit_clients(FedAvg(1.0, aggregation=AddedUp()), module, CLIENTS, 2, devices=devices, strategy=strategy)
        return float(module.w)

    # the updates 2 and 4 add up to 6, so w goes from 0 to 6 / 4; then by (0.5 + 2.5) / 4
    assert train(1, "auto") == 2.25
    assert on_two_processes(lambda: train(2, "ddp"), tmp_path) == (2.25, 2.25)


# ---- draws ----


class DrawsOnly(parts.Exchange):
    """Notes draws of each client and of each round."""

    def __init__(self) -> None:
        self.drawn: list[tuple[Any, float]] = []

    def upload(self, result: parts.ClientResult) -> parts.ClientResult:
        for place in ((), (1,)):
            number = torch.rand((), generator=self.generator(result.task, *place))
            self.drawn.append(((result.client, result.task.round, *place), float(number)))
        return result

    def on_round_end(self) -> None:
        self.drawn.append((self.round, float(torch.rand((), generator=self.generator()))))


def test_draws_differ_between_clients_rounds_and_places_and_are_the_same_in_another_fit() -> None:
    fits = []
    for seed, executor in ((1, "sequential"), (1, "vectorized"), (2, "sequential")):
        exchange = DrawsOnly()
        fit(FedAvg(1.0, exchange=exchange, seed=seed, executor=executor), 3)
        assert len({number for _, number in exchange.drawn}) == len(exchange.drawn) == 3 * (2 * 2 + 1)
        fits.append(dict(exchange.drawn))
    assert fits[0] == fits[1]
    assert not set(fits[0].values()) & set(fits[2].values())


# ---- parts around other parts ----


class HalfStep(parts.ServerOptimizer):
    """Goes half of the way of another optimizer."""

    def __init__(self, inner: parts.ServerOptimizer) -> None:
        self.inner = inner

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return model + (self.inner.step(model, aggregate) - model) / 2


def test_a_held_part_has_hooks_and_a_federation() -> None:
    calls: list[str] = []

    class Told(parts.ServerOptimizer):
        def setup(self, federation: parts.Federation) -> None:
            calls.append(f"fit of {self.federation.num_clients}")

        def on_round_start(self, round_index: int) -> None:
            calls.append(f"start {round_index}")

        def on_round_end(self) -> None:
            calls.append("end")

        def values(self) -> dict[str, float]:
            return {"told": len(calls)}

        def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
            return aggregate

    trainer = fit_clients(Federated(1.0, server=HalfStep(Told())), module := Quadratic(1.0, [0.0]), CLIENTS, 2)
    assert float(module.w) == 1.5 + 0.75
    assert calls == ["fit of 2", "start 0", "end", "start 1", "end"]
    assert trainer.callback_metrics["told"] == 5


def scaffold_with_prox(rounds: int, mu: float) -> float:
    """SCAFFOLD, option 2, whose clients also have a proximal term: (w - c)^2 / 2, three steps of learning rate 0.1."""
    w, variates = 0.0, [0.0, 0.0]
    for _ in range(rounds):
        mean, ends = sum(variates) / 2, []
        for client, optimum in enumerate([2.0, 4.0]):
            local = w
            for _ in range(3):
                local -= 0.1 * (local - optimum - variates[client] + mean + mu * (local - w))
            variates[client] += (w - local) / 0.3 - mean
            ends.append(local)
        w = sum(ends) / 2
    return w


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_an_objective_around_another_one_that_keeps_vectors(executor: Any) -> None:
    objective = Together(parts.ControlVariates(), parts.Proximal(0.5))
    callback = Federated(1.0, objective=objective, local_epochs=3, executor=executor)
    assert fit(callback, 3, lr=0.1) == pytest.approx(scaffold_with_prox(3, 0.5), abs=1e-12)
    assert callback.algorithm.models_sent == 3 * 2 * 2 * 2  # rounds, clients, ways; a model and a control variate
    with pytest.raises(ValueError, match="Together"):
        Federated(1.0, objective=objective, schedule=parts.Redistribution(2))


def test_a_schedule_around_another_one_circulates_models() -> None:
    # clients go half of their way, so two of them take a model from w to w/4 + 1.5, 2, 2.5 or 3: 2.25 in the mean
    schedule = PlayedBy(parts.Redistribution(2))
    callback = Federated(1.0, schedule=schedule, aggregation=parts.WeightedMean("uniform"), seed=3)
    assert fit(callback, 6, lr=0.5) == 2.25 * (1 + 1 / 4 + 1 / 16)
    assert schedule.played == 6
    with pytest.raises(ValueError, match="unequal"):
        Federated(1.0, schedule=PlayedBy(parts.Redistribution(2)), participation=parts.Participation(dropout=0.5))
