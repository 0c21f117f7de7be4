"""What a user's part returns, and what it does to tensors that it is given: errors name the part and the way out.

Two clients reach their optima 2 and 4 in one step, so that a round of FedAvg moves the server to their mean, 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.given_parts import Given, Merge, Plan, Step, Way
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic, quiet_trainer
from torch import Tensor

from fl_lightning import AggregationCallback, FedAvg, FedBuff, Federated, RADFed, TensorDataModule
from fl_lightning.parts import (
    ClientResult,
    Correction,
    Exchange,
    LocalObjective,
    Payload,
    Task,
)

CLIENTS = clients_that_reach([[2.0], [4.0]], [1, 1])


def fit(callback: AggregationCallback, rounds: int = 2) -> float:
    return float(fit_quadratic(callback, Quadratic(1.0, [0.0]), CLIENTS, rounds))


MAKE: dict[str, Callable[..., AggregationCallback]] = {
    "FedAvg": lambda **k: FedAvg(1.0, seed=1, **k),
    "RADFed": lambda **k: RADFed(1, 1.0, seed=1, **k),
    "FedBuff": lambda **k: FedBuff(2, 2, speeds=[1, 1], seed=1, **k),
}


def test_a_part_that_returns_what_it_should_is_left_alone() -> None:
    assert fit(Federated(1.0, server=Step(lambda model, aggregate: aggregate.float()))) == 3.0
    assert fit(Federated(1.0, server=Step(lambda model, aggregate: aggregate.requires_grad_() * 1.0))) == 3.0
    assert fit(FedAvg(1.0, aggregation=Merge(lambda model, mean: mean), exchange=Way())) == 3.0
    assert fit(Federated(1.0, schedule=Plan(), exchange=Way(published=lambda model: model + 1.0))) == 4.0


# ---- numbers ----


def with_samples(number: Any) -> Way:
    return Way(upload=lambda result: replace(result, task=replace(result.task, num_samples=number)))


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("number", [-2, -0.5, "3", None, math.nan, math.inf, True, torch.ones(2)])
def test_a_number_of_samples_that_is_none_is_told_as_the_exchange_s(name: str, number: Any) -> None:
    text = r"`Way.upload` returned a result whose `task.num_samples` is .*it must be a finite number of at least 0"
    with pytest.raises(ValueError, match=text):
        fit(MAKE[name](exchange=with_samples(number)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"num_steps": -1}, "`num_steps` is -1; it must be a finite number of at least 0"),
        ({"num_steps": math.nan}, "`num_steps` is nan; it must be a finite number of at least 0"),
        ({"loss": math.nan}, "`loss` is nan; it must be a finite number"),
        ({"loss": "low"}, "`loss` is 'low'; it must be a finite number"),
        ({"score": torch.ones(2)}, r"`score` is .*; it must be a finite number\. Give another number"),
        ({"score": np.ones(2)}, r"`score` is .*; it must be a finite number"),
        ({"score": "high"}, r"`score` is 'high'; it must be a finite number"),
        ({"summed_lr": None}, r"`summed_lr` is None; it must be one number for each parameter tensor, or \(\)"),
        ({"summed_lr": 0.1}, r"`summed_lr` is 0\.1; it must be one number for each parameter tensor"),
        ({"summed_lr": torch.ones(1, 1)}, r"`summed_lr` is .*; it must be one number for each parameter tensor"),
        ({"summed_lr": [math.nan]}, r"`summed_lr` has a value that is nan; it must be a finite number of at least 0"),
    ],
)
@pytest.mark.parametrize("name", MAKE)
def test_other_numbers_of_a_result_are_checked_too(name: str, change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=rf"`Way.upload` returned a result whose {text}"):
        fit(MAKE[name](exchange=Way(upload=lambda result: replace(result, **change))))


@pytest.mark.parametrize("make", [partial(RADFed, 2, 1.0), partial(FedBuff, 3, 2)])
def test_packed_numbers_of_a_result_are_in_checkpoints(
    make: Callable[..., AggregationCallback], tmp_path: Path
) -> None:
    def uploaded(result: ClientResult) -> ClientResult:
        return replace(result, score=torch.tensor(2.0), summed_lr=np.ones(1, dtype=np.float32), num_steps=np.int64(1))

    trainer = quiet_trainer(
        max_epochs=1, callbacks=[make(seed=1, exchange=Way(upload=uploaded))], default_root_dir=tmp_path
    )
    trainer.fit(Quadratic(1.0, [0.0]), datamodule=TensorDataModule(CLIENTS, batch_size=None))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    torch.load(tmp_path / "last.ckpt", weights_only=True)


def test_a_task_that_is_none_is_told_as_the_exchange_s() -> None:
    with pytest.raises(TypeError, match=r"`Way.upload` returned a result whose task is None. Leave `result.task`"):
        fit(FedAvg(1.0, exchange=Way(upload=lambda result: replace(result, task=None))))


@pytest.mark.parametrize("name", MAKE)
def test_a_task_of_another_slot_is_told_as_the_exchange_s(name: str) -> None:
    with pytest.raises(ValueError, match=r"^`Way.upload` returned a result whose `task.slot` is 0, .* client's is 1, "):
        fit(MAKE[name](exchange=Way(upload=lambda result: replace(result, task=Task(0, result.task.client, 1)))))


@pytest.mark.parametrize("kind", [int, float, np.int64, np.float32, torch.tensor])
def test_numbers_of_samples_may_be_of_any_kind(kind: Callable[[int], Any]) -> None:
    # clients reach 2 and 4; with 3 samples and 1 they weigh 3/4 and 1/4: 3/4 * 2 + 1/4 * 4 = 2.5
    def uploaded(result: ClientResult) -> ClientResult:
        return replace(result, task=replace(result.task, num_samples=kind(3 - 2 * result.task.client)))

    assert fit(FedAvg(1.0, exchange=Way(upload=uploaded))) == 2.5


class Sum(Exchange):
    def __init__(self, divisor: Any) -> None:
        self.divisor = divisor

    def summed(self, total: Tensor, count: float) -> Any:
        return total, self.divisor


@pytest.mark.parametrize("divisor", [-3.0, math.nan, math.inf, np.float64(-1)])
def test_a_divisor_of_the_sum_that_is_none_is_told_as_the_exchange_s(divisor: Any) -> None:
    text = r"`Sum.summed` returned a sum whose number, .*, is .*must be a finite number of at least 0"
    with pytest.raises(ValueError, match=text):
        fit(FedAvg(1.0, weighting="uniform", exchange=Sum(divisor)))


@pytest.mark.parametrize(("divisor", "expected"), [(0, 0.0), (2, 3.0), (np.float32(4), 1.5)])
def test_a_sum_is_divided_by_the_exchange_s_number(divisor: Any, expected: float) -> None:
    # the updates 2 and 4 add up to 6
    assert fit(FedAvg(1.0, weighting="uniform", exchange=Sum(divisor)), rounds=1) == expected


# ---- types and shapes ----

WRONG: list[tuple[Callable[[Tensor], Any], type[Exception], str]] = [
    (lambda vector: None, TypeError, "None; it must return a tensor .* Is a `return` missing"),
    (lambda vector: vector.numpy(), TypeError, "torch.as_tensor"),
    (lambda vector: vector.tolist(), TypeError, "torch.as_tensor"),
    (lambda vector: vector.sum(), ValueError, r"shape \(\); the server needs \(1,\)"),
    (lambda vector: vector[None], ValueError, r"shape \(1, 1\); the server needs \(1,\)"),
    (lambda vector: vector.repeat(2), ValueError, r"shape \(2,\); the server needs \(1,\)"),
    (lambda vector: vector.long(), TypeError, "torch.int64, which would change the weights"),
    (lambda vector: vector > 0, TypeError, "torch.bool, which would change the weights"),
    (lambda vector: vector * 1j, TypeError, "torch.complex128, which would change the weights"),
]


@pytest.mark.parametrize(("function", "error", "text"), WRONG)
def test_the_error_names_part_method_and_way_out(function: Any, error: Any, text: str) -> None:
    returning = {
        "Step.step": Federated(1.0, server=Step(lambda model, aggregate: function(aggregate))),
        "Way.download": FedAvg(1.0, exchange=Way(download=function)),
        "Way.merged": FedAvg(1.0, exchange=Way(merged=function)),
        "Way.published": FedAvg(1.0, exchange=Way(published=function)),
        "Plan.start": Federated(1.0, schedule=Plan(start=function)),
        "Plan.publish": Federated(1.0, schedule=Plan(publish=function)),
    }
    if "None" not in text:  # with None an aggregation says that there was no result
        returning["Merge.merge"] = FedAvg(1.0, aggregation=Merge(lambda model, mean: function(mean)))
    for method, callback in returning.items():
        with pytest.raises(error, match=f"`{method}` returned .*{text}"):
            fit(callback)


@pytest.mark.parametrize("name", MAKE)
def test_upload_returns_a_result(name: str) -> None:
    wrong: list[tuple[Callable[[ClientResult], Any], type[Exception], str]] = [
        (lambda result: None, TypeError, "`Way.upload` returned None; .* Is a `return` missing"),
        (lambda result: result.delta, TypeError, "it must return a ClientResult, such as"),
        (lambda result: result.with_delta(result.delta, 4), TypeError, "`Way.upload` .* payload is 4"),  # type: ignore[arg-type]
        (lambda result: result.with_delta(result.delta.sum()), ValueError, r"`result.with_delta` needs .* \(1,\)"),
        (lambda result: result.with_vector(result.vector.repeat(2)), ValueError, "`result.with_vector` needs"),
        (lambda result: result.with_vector(result.vector.long()), TypeError, "`Way.upload` .* torch.int64"),
    ]
    for function, error, text in wrong:
        with pytest.raises(error, match=text):
            fit(MAKE[name](exchange=Way(upload=function)))


def test_payloads_are_counts() -> None:
    with pytest.raises(ValueError, match=r"`values` must be a whole number of at least 0, got -1"):
        Payload(10).sparse(-1, of=10)
    with pytest.raises(ValueError, match=r"`values` must be at most `of`, 10, got 11"):
        Payload(10).sparse(11, of=10)
    with pytest.raises(ValueError, match=r"`extra_bits` must be a whole number"):
        Payload(10, 32, 0.5)  # type: ignore[arg-type]
    assert type(Payload(np.int64(3)).values) is int  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda: 0.1, TypeError, "`Given.correction` must return a Correction"),
        (lambda: Correction, TypeError, "`Given.correction` must return a Correction"),
        (lambda: Correction(linear=torch.zeros(2)), ValueError, r"`Given.correction` .* shape \(2,\); it needs \(1,\)"),
        (
            lambda: Correction(linear=torch.tensor([math.nan])),
            FloatingPointError,
            "`linear` has NaN or infinite values",
        ),
        (lambda: Correction(linear=[0.0]), TypeError, "`linear` must be a floating-point tensor"),  # type: ignore[arg-type]
        (lambda: Correction(pull=float("nan")), ValueError, "`pull` must be a finite number"),
    ],
)
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_an_objective_returns_a_correction(executor: Any, function: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        fit(Federated(1.0, objective=Given(function), executor=executor))


# ---- NaN and infinite values ----


class Later:
    """Multiplies by 0 / 0 from the second call on."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, vector: Tensor) -> Tensor:
        self.calls += 1
        return vector if self.calls == 1 else vector * float("nan")


@pytest.mark.parametrize("method", ["Step.step", "Way.merged", "Way.published", "Plan.publish", "Merge.merge"])
def test_the_part_that_makes_nan_is_named_and_the_round_discarded(method: str) -> None:
    later, module = Later(), Quadratic(1.0, [0.0])
    callback = {
        "Step.step": lambda: Federated(1.0, server=Step(lambda model, aggregate: later(aggregate))),
        "Way.merged": lambda: FedAvg(1.0, exchange=Way(merged=later)),
        "Way.published": lambda: FedAvg(1.0, exchange=Way(published=later)),
        "Plan.publish": lambda: Federated(1.0, schedule=Plan(publish=later)),
        "Merge.merge": lambda: FedAvg(1.0, aggregation=Merge(lambda model, mean: later(mean))),
    }[method]()
    with pytest.raises(FloatingPointError, match=f"`{method}` returned NaN or infinite parameters"):
        fit_quadratic(callback, module, CLIENTS, rounds=3)
    assert module.w.tolist() == [3.0]


@pytest.mark.parametrize("name", MAKE)
def test_nan_that_upload_makes_is_not_the_clients_doing(name: str) -> None:
    with pytest.raises(FloatingPointError, match=r"`Way.upload` returned NaN .* client \d, which handed in finite"):
        fit(MAKE[name](exchange=[Way(), Way(upload=lambda result: result.with_delta(result.delta / 0))]))


@pytest.mark.parametrize("name", MAKE)
def test_nan_that_a_client_receives_is_not_its_own_doing(name: str) -> None:
    with pytest.raises(FloatingPointError, match=r"Client \d received NaN .* arithmetic of `Way.download`\."):
        fit(MAKE[name](exchange=Way(download=lambda model: model / 0)))
    with pytest.raises(FloatingPointError, match=r"Client \d received NaN .* arithmetic of `Plan.start`\."):
        fit(Federated(1.0, schedule=Plan(start=lambda model: model / 0)))


class Loss(LocalObjective):
    def loss_of(self, task: Any) -> float:
        return float("nan") if task.client == 1 else 1.0


@pytest.mark.parametrize("name", ["FedAvg", "FedBuff"])
def test_a_client_with_an_invalid_loss_is_left_out(name: str) -> None:
    # client 0 alone moves the server, from 0 to 2
    make = {
        "FedAvg": lambda: Federated(1.0, objective=Loss()),
        "FedBuff": lambda: Federated(2, objective=Loss(), schedule=FedBuff(1, 2, speeds=[1, 1]).algorithm.schedule),
    }
    with pytest.warns(UserWarning, match=r"client 1 was left out: its model has NaN or"):
        assert fit(make[name](), rounds=1) == 2.0


# ---- slots ----


class Slots(Plan):
    def __init__(self, chosen: Any) -> None:
        super().__init__()
        self.chosen = chosen

    def choose_slots(self, num_active: int, cohort_size: int, rng: np.random.Generator) -> Any:
        return self.chosen


@pytest.mark.parametrize(
    ("chosen", "error"),
    [
        *[(None, TypeError), (2, TypeError), ([0.5, 1], TypeError)],
        *[([0, 0], ValueError), ([0, -1], ValueError), ([0, 1, 2], ValueError)],
    ],
)
def test_a_schedule_chooses_distinct_slots(chosen: Any, error: type[Exception]) -> None:
    with pytest.raises(
        error, match=r"`Slots.choose_slots` returned .*; it must return distinct whole numbers .* 2, one"
    ):
        fit(Federated(1.0, schedule=Slots(chosen)))


def test_fewer_slots_than_clients_are_possible() -> None:
    assert fit(Federated(1.0, schedule=Slots(np.array([1]))), rounds=1) in (2.0, 4.0)


# ---- results that a schedule gives the server ----


class Giving(Plan):
    """Gives the server what a function makes of a client's result."""

    def __init__(self, function: Callable[[ClientResult], Any], times: int = 1) -> None:
        super().__init__()
        self.function, self.times = function, times

    def receive(self, result: ClientResult, server: Any) -> None:
        for _ in range(self.times):
            server.take(self.function(result))


def of_client(number: Any) -> Callable[[ClientResult], ClientResult]:
    return lambda result: replace(result, task=replace(result.task, client=number))


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda result: result.vector, TypeError, r"<Tensor.*; it must be a ClientResult"),
        (of_client(2), ValueError, r"a result whose `task\.client` is 2; it must be a whole number from 0 to 1, or -1"),
        (of_client("a"), ValueError, r"a result whose `task\.client` is 'a'; it must be a whole number"),
        (
            lambda result: replace(result, task=replace(result.task, slot=None)),
            ValueError,
            r"a result whose `task\.slot` is None; it must be at least 0",
        ),
        (
            lambda result: replace(result, task=replace(result.task, num_samples=-1)),
            ValueError,
            r"a result whose `task\.num_samples` is -1; it must be a finite number of at least 0",
        ),
        (
            lambda result: replace(result, vector=torch.zeros(2)),
            ValueError,
            r"a result whose `vector` has shape \(2,\) and lies on cpu; it must have shape \(1,\)",
        ),
        (
            lambda result: replace(result, start=[0.0]),
            TypeError,
            r"a result whose `start` is \[0\.0\]; it must be a floating-point tensor",
        ),
        (
            lambda result: replace(result, vector=result.vector / 0),
            FloatingPointError,
            r"a result of client \d with NaN or infinite values",
        ),
    ],
)
def test_a_result_that_no_client_handed_in_is_told_as_the_schedule_s(
    function: Callable[[ClientResult], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=rf"^`Giving` gave `server\.take` .*{text}"):
        fit(Federated(1.0, schedule=Giving(function)))


def test_a_result_that_a_schedule_gives_twice_is_an_error() -> None:
    text = r"two results of round 1 and slot (\d), client \d, for one move: it would count twice"
    with pytest.raises(ValueError, match=rf"^`Giving` gave `server\.take` {text}"):
        fit(Federated(1.0, schedule=Giving(lambda result: result, times=2)))


def test_a_schedule_may_give_models_of_no_single_client() -> None:
    assert fit(Federated(1.0, schedule=Giving(of_client(-1)))) == 3.0
