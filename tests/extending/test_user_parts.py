"""What parts of a user's are given, and what becomes of what they return: numbers by hand.

Two clients reach their optima 2 and 4 in one step, so that a round of FedAvg moves the server to their mean, 3. That
parts resume, roll back and train on several processes is the contract of ``tests/contracts/test_parts.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from contracts.user_parts import Claims, DrawsAs, HalfStep, PlayedBy, Together
from helpers.forking import on_two_processes
from helpers.given_parts import Given, Merge, Plan, Step, Way
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic, quiet_trainer
from torch import Tensor

from fl_lightning import FedAvg, FedBuff, FedDyn, Federated, PersonalParameters, RADFed, Scaffold, TensorDataModule
from fl_lightning.executors import Executor
from fl_lightning.parts import (
    Aggregation,
    ClientResult,
    ClientSampler,
    ClientVectors,
    ControlVariates,
    Correction,
    Exchange,
    Federation,
    ImportanceSampler,
    LocalObjective,
    Participation,
    Proximal,
    Redistribution,
    ServerOptimizer,
    Task,
    WeightedMean,
)

CLIENTS = clients_that_reach([[2.0], [4.0]], [1, 1])


def fit(callback: Any, rounds: int = 1, *, lr: float = 1.0) -> float:
    return float(fit_quadratic(callback, Quadratic(lr, [0.0]), CLIENTS, rounds))


def trainer_of(callback: Any, rounds: int = 1, module: Any = None, **options: Any) -> L.Trainer:
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback], **options)
    trainer.fit(module or Quadratic(1.0, [0.0]), datamodule=TensorDataModule(CLIENTS, batch_size=None))
    return trainer


# ---- what a part returns ----

Of = Callable[[Tensor], Any]
#: A part that returns what a function makes of a vector, by the name that errors have for it.
RETURNING: dict[str, Callable[[Of], Any]] = {
    "Step.step": lambda of: Federated(1.0, server=Step(lambda model, aggregate: of(aggregate))),
    "Merge.merge": lambda of: FedAvg(1.0, aggregation=Merge(lambda model, mean: of(mean))),
    "Way.download": lambda of: FedAvg(1.0, exchange=Way(download=of)),
    "with_vector": lambda of: FedAvg(1.0, exchange=Way(upload=lambda result: result.with_vector(of(result.vector)))),
    "Way.merged": lambda of: FedAvg(1.0, exchange=Way(merged=of)),
    "Way.published": lambda of: FedAvg(1.0, exchange=Way(published=of)),
    "Plan.start": lambda of: Federated(1.0, schedule=Plan(start=of)),
    "Plan.publish": lambda of: Federated(1.0, schedule=Plan(publish=of)),
}


@pytest.mark.parametrize("name", RETURNING)
def test_a_vector_of_another_length_or_with_nan_is_refused_and_the_round_discarded(name: str) -> None:
    module = Quadratic(1.0, [0.5])
    for wrong, error in ((lambda vector: vector.repeat(2), ValueError), (lambda vector: vector / 0, Exception)):
        with pytest.raises(error, match=name if error is ValueError else "NaN or infinite"):
            fit_quadratic(RETURNING[name](wrong), module, CLIENTS, 1)
        assert module.w.tolist() == [0.5]


@pytest.mark.parametrize("name", RETURNING)
def test_the_server_keeps_its_type_whatever_a_part_returns(name: str) -> None:
    module, clients = Quadratic(1.0, [0.0]).float(), [(a.float(), c.float()) for a, c in CLIENTS]
    callback = RETURNING[name](lambda vector: vector.double())
    assert float(fit_quadratic(callback, module, clients, 2)) == 3.0
    assert callback.algorithm.server.model.dtype == callback.algorithm.shown.dtype == torch.float32


class Draws(ClientSampler):
    def __init__(self, drawn: Any) -> None:
        self.drawn = drawn

    def cohort_size(self, num_clients: int) -> int:
        return 2

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> Any:
        return self.drawn


@pytest.mark.parametrize("drawn", [[1, 1], [0, 2], [-1, 0], None, [0.5, 1.0], [True, False]], ids=str)
def test_a_cohort_is_made_of_different_clients(drawn: Any) -> None:
    module = Quadratic(1.0, [7.0])
    with pytest.raises(ValueError, match=r"Draws\.draw"):
        fit_quadratic(FedAvg(sampler=Draws(drawn)), module, CLIENTS, 1)
    assert (module.w.tolist(), module.seen) == ([7.0], [])


def test_a_cohort_may_be_any_sequence_and_empty() -> None:
    for drawn in ([1, 0], (1, 0), np.array([1, 0], dtype=np.uint8)):
        assert fit(FedAvg(sampler=Draws(drawn))) == 3.0
    assert fit(FedAvg(sampler=Draws([]))) == 0.0
    with pytest.raises(ValueError, match=r"Draws\.draw"):
        fit(FedAvg(sampler=Draws([0, 1]), participation=Participation(available=lambda index: [0])))


@pytest.mark.parametrize(
    "change", [{"num_steps": -1}, {"loss": math.nan}, {"score": "high"}, {"summed_lr": 0.1}], ids=str
)
def test_numbers_of_a_result_are_checked(change: dict[str, Any]) -> None:
    for make in (FedAvg, lambda m, **k: RADFed(1, m, **k), lambda m, **k: FedBuff(2, 2, speeds=[1, 1], **k)):
        with pytest.raises(ValueError, match=next(iter(change))):
            fit(make(1.0, exchange=Way(upload=lambda result: replace(result, **change))))


@pytest.mark.parametrize("number", [-2, "3", math.nan, 1e308])
def test_a_number_of_samples_that_is_none_is_refused(number: Any) -> None:
    way = Way(upload=lambda result: replace(result, task=replace(result.task, num_samples=number)))
    with pytest.raises(ValueError, match="num_samples"):
        fit(FedAvg(1.0, exchange=way))


class Sum(Exchange):
    """Divides the sum of updates by another number."""

    def __init__(self, divisor: Any) -> None:
        self.divisor = divisor

    def summed(self, total: Tensor, count: float) -> Any:
        return total, self.divisor


@pytest.mark.parametrize(("divisor", "expected"), [(0, 0.0), (2, 3.0), (np.float32(4), 1.5)])
def test_a_sum_is_divided_by_the_exchange_s_number(divisor: Any, expected: float) -> None:
    # the updates 2 and 4 add up to 6
    assert fit(FedAvg(1.0, weighting="uniform", exchange=Sum(divisor))) == expected


class Equal(Exchange):
    """All clients send what the first one does."""

    def colluded(self, results: Any) -> Any:
        return [result.with_delta(results[0].delta) for result in results]


def test_what_clients_agree_on_replaces_what_they_send() -> None:
    assert fit(FedAvg(1.0, exchange=Equal())) == 2.0


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    "wrong", [0.1, Correction(linear=torch.zeros(2)), Correction(linear=torch.tensor([math.nan]))], ids=str
)
def test_an_objective_returns_a_correction(wrong: Any, executor: Any) -> None:
    with pytest.raises((TypeError, ValueError, FloatingPointError), match="Given"):
        fit(Federated(1.0, objective=Given(lambda: wrong), executor=executor))


def test_a_client_with_an_invalid_loss_is_left_out() -> None:
    class Loss(LocalObjective):
        def loss_of(self, task: Task) -> float:
            return math.nan if task.client == 1 else 1.0

    with pytest.warns(UserWarning, match="client 1 was left out"):
        assert fit(Federated(1.0, objective=Loss())) == 2.0


# ---- what travels to the aggregation ----


class Sees(Aggregation):
    """Notes what it gets, and lets the server stay."""

    def __init__(self) -> None:
        self.seen: list[ClientResult] = []

    def update(self, result: ClientResult) -> None:
        self.seen.append(result)

    def merge(self, model: Tensor) -> Tensor | None:
        return None


def test_a_circulating_model_has_the_sums_of_its_trainings_and_the_rest_of_the_last_one() -> None:
    aggregation = Sees()
    fit(RADFed(2, 1.0, exchange=Claims(), aggregation=aggregation, seed=1), 2)
    # both clients train both models or each its own one twice; clients 0 and 1 claim 1 and 2 samples, scores 4 and 1
    assert sum(result.num_samples for result in aggregation.seen) == 2 * (1 + 2)
    assert sorted(result.score or 0.0 for result in aggregation.seen) == [1.0, 4.0]
    assert [result.num_steps for result in aggregation.seen] == [2, 2]


# ---- vectors of clients ----


class Neighbour(Exchange):
    """Lets a client start from the vector of the other one."""

    def on_fit_start(self, federation: Federation) -> None:
        self.states = ClientVectors(federation, federation.model)

    def download(self, task: Task, model: Tensor) -> Tensor:
        return self.states[1 - task.client]

    def upload(self, result: ClientResult) -> ClientResult:
        self.states.put(result.task.client, result.vector)
        assert torch.equal(self.states[result.task.client], result.vector)  # its own is there at once
        return result


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_others_have_the_vectors_of_the_rounds_start(executor: Any) -> None:
    # half of the way to 2 and 4: from 0 and 0 to 1 and 2; from 2 and 1 to 2 and 2.5; from 2.5 and 2 to 2.25 and 3
    assert fit(FedAvg(1.0, exchange=Neighbour(), seed=1, executor=executor), 3, lr=0.5) == (2.25 + 3.0) / 2


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
        trainer_of(callback := make(), 1, Quadratic(0.5, [0.0]), devices=devices, strategy=strategy)
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


class AddedUp(Aggregation):
    """Moves by a quarter of the sum of all updates, over all processes."""

    reduces_over_ranks = True

    def __init__(self) -> None:
        self.sum = torch.zeros(1, dtype=torch.float64)

    def update(self, result: ClientResult) -> None:
        self.sum = self.sum + result.delta

    def merge(self, model: Tensor) -> Tensor | None:
        total = self.federation.sum_over_ranks(self.sum)
        total /= 4  # the sum is the caller's: writing to it changes nothing else
        self.sum = torch.zeros_like(self.sum)
        return model + total


class Unseeded(ServerOptimizer):
    """Draws other noise on each process."""

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return aggregate + float(np.random.default_rng(None).standard_normal())


def test_sums_are_those_of_all_processes_and_what_differs_between_them_is_an_error(tmp_path: Path) -> None:
    def train(callback: Any) -> float:
        return float(trainer_of(callback, 2, devices=2, strategy="ddp").lightning_module.w)  # type: ignore[operator]

    # the updates 2 and 4 add up to 6, so w goes from 0 to 6 / 4; then by (0.5 + 2.5) / 4
    assert on_two_processes(lambda: train(FedAvg(1.0, aggregation=AddedUp())), tmp_path) == (2.25, 2.25)
    with pytest.raises(RuntimeError, match="Unseeded"):
        on_two_processes(lambda: train(Federated(1.0, server=Unseeded())), tmp_path)


# ---- draws ----


def test_draws_differ_between_clients_rounds_and_attempts_to_move() -> None:
    seen: list[float] = []

    class Stays(Sees):
        def merge(self, model: Tensor) -> Tensor | None:
            seen.append(float(torch.rand(())))
            return None

    def note(result: ClientResult) -> ClientResult:
        seen.append(float(torch.rand(())))
        return result

    for callback in (
        FedAvg(1.0, exchange=Way(upload=note), aggregation=Stays(), seed=1),
        FedBuff(1, 2, aggregation=Stays()),
    ):
        seen.clear()
        fit(callback, 3)
        assert len(set(seen)) == len(seen) >= 6


# ---- parts around other parts ----


def test_a_held_part_has_hooks_and_a_federation() -> None:
    calls: list[str] = []

    class Told(ServerOptimizer):
        def on_fit_start(self, federation: Federation) -> None:
            calls.append(f"fit of {self.federation.num_clients}")

        def on_round_start(self, round_index: int) -> None:
            calls.append(f"start {round_index}")

        def on_round_end(self) -> None:
            calls.append("end")

        def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
            return aggregate

    assert fit(Federated(1.0, server=HalfStep(Told())), 2) == 1.5 + 0.75
    assert calls == ["fit of 2", "start 0", "end", "start 1", "end"]


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


class Passing(LocalObjective):
    """Does what another objective does, and notes whose training ends."""

    def __init__(self, inner: LocalObjective) -> None:
        self.inner = inner
        self.ended: list[int] = []

    @property
    def held_parts(self) -> list[LocalObjective]:
        return [self.inner]

    def on_client_end(self, result: ClientResult) -> None:
        super().on_client_end(result)
        self.ended.append(result.task.client)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_held_objectives_correct_and_are_told_of_clients_that_end(executor: Any) -> None:
    passing = Passing(ControlVariates())
    for objective, mu in ((Together(ControlVariates(), Proximal(0.5)), 0.5), (passing, 0.0)):
        callback = Federated(1.0, objective=objective, local_epochs=3, executor=executor)
        assert fit(callback, 3, lr=0.1) == pytest.approx(scaffold_with_prox(3, mu), abs=1e-12)
        assert callback.algorithm.models_sent == 3 * 2 * 2 * 2  # rounds, clients, ways; a model and a control variate
    assert sorted(passing.ended) == [0, 0, 0, 1, 1, 1]
    with pytest.raises(ValueError, match="Together"):
        Federated(1.0, objective=Together(ControlVariates()), schedule=Redistribution(2))


def test_held_samplers_are_given_scores() -> None:
    # f_k = (w - c_k)^2 / 2 from 0: the squared gradient is c_k^2, and 0 at the optimum, where training ends
    inner = ImportanceSampler(1, gamma=0.5)
    fit(FedAvg(sampler=DrawsAs(inner), seed=1))
    assert sorted(inner.scores.tolist()) in ([2.0, 16.0], [4.0, 8.0])


def test_a_held_schedule_circulates_models() -> None:
    # clients go half of their way, so two of them take a model from w to w/4 + 1.5, 2, 2.5 or 3: 2.25 in the mean
    schedule = PlayedBy(Redistribution(2))
    callback = Federated(1.0, schedule=schedule, aggregation=WeightedMean("uniform"), seed=3)
    assert fit(callback, 6, lr=0.5) == 2.25 * (1 + 1 / 4 + 1 / 16)
    with pytest.raises(ValueError, match="unequal"):
        fit(Federated(1.0, schedule=PlayedBy(Redistribution(2)), participation=Participation(dropout=0.5)))


# ---- executors ----


class Hands(Executor):
    """Hands in each result, or what a function makes of a round's results."""

    def __init__(self, hand: Callable[[list[ClientResult]], list[ClientResult]]) -> None:
        self.hand, self.kept = hand, list[ClientResult]()

    def run(self, tasks: Any, clients: Any, algorithm: Any) -> None:
        results = [clients.train(task, algorithm.start(task)) for task in tasks]
        self.kept += results
        for result in self.hand(self.kept):
            algorithm.receive(result)


@pytest.mark.parametrize(
    ("hand", "rounds"),
    [(lambda kept: [*kept, kept[0]], 1), (lambda kept: kept, 2), (lambda kept: kept[1:], 1)],
    ids=["twice", "of another round", "missing"],
)
def test_an_executor_hands_in_each_result_of_a_round_once(hand: Any, rounds: int) -> None:
    with pytest.raises(RuntimeError, match="The executor handed in"):
        fit(FedAvg(1.0, executor=Hands(hand)), rounds)
