"""Closed forms of the asynchronous algorithms, through `Trainer.fit`."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from helpers.begun import federation_of
from helpers.toys import Quadratic, fit_quadratic, quadratic_clients
from helpers.watching import of_ten, watch

from fl_lightning import DynamicWeightFedBuff, FedAsync
from fl_lightning.parts import Aggregation, ClientResult, Mixing, Task, VirtualClock
from fl_lightning.parts.aggregations.stale import DynamicWeightMean, StalenessMixing, StalenessWeightedDeltas
from fl_lightning.parts.aggregations.staleness import exponential, hinge, polynomial

SPEEDS = [100, 95, 90, 85, 80, 25, 20, 15, 10, 5]
# Table of s(d): polynomial a = 0.5, hinge a = 10, b = 4
STALENESS = {
    0: (1.0, 1.0),
    1: (0.707106781, 1.0),
    3: (0.5, 1.0),
    4: (0.447213595, 1.0),
    5: (0.408248290, 0.0909090909),
    6: (0.377964473, 0.047619048),
    8: (0.333333333, 0.024390244),
    18: (0.229415734, 0.007092199),
}


# ---- O8, FedAsync ----


def test_staleness_functions() -> None:
    assert [polynomial()(late) for late in STALENESS] == pytest.approx([row[0] for row in STALENESS.values()], abs=1e-9)
    assert [hinge()(late) for late in STALENESS] == pytest.approx([row[1] for row in STALENESS.values()], abs=1e-9)
    assert exponential(0.5)(2) == pytest.approx(0.367879441, abs=1e-9)


def scalar(value: float) -> torch.Tensor:
    """Return a model of one parameter."""
    return torch.tensor([value], dtype=torch.float64)


def result(
    start: float, end: float, staleness: int, *, client: int = 0, samples: int = 1, counter: int = 0
) -> ClientResult:
    """Return what a client hands back that moved the one parameter from ``start`` to ``end``."""
    task = Task(0, client, samples)
    return ClientResult(task, scalar(start), scalar(end), 1, staleness=staleness, counter=counter)


def arrive(
    aggregation: Aggregation, arrivals: list[tuple[float, int]], *, buffer_size: int, lr: float = 1.0, delta: bool
) -> list[float]:
    """Return the server's value after each move for the arrivals (x, d).

    ``x`` is the way from the server's model with ``delta``, otherwise the client's model, reached from 0.
    """
    aggregation.begin_fit(federation_of([1] * 4))
    server, model, seen = Mixing(lr), scalar(0.0), []
    for first in range(0, len(arrivals), buffer_size):
        start = float(model) if delta else 0.0
        buffer = [result(start, start + x, staleness) for x, staleness in arrivals[first : first + buffer_size]]
        aggregate = aggregation.merge(model, buffer)
        assert aggregate is not None
        model = server.step(model, aggregate)
        seen.append(float(model))
    return seen


@pytest.mark.parametrize(
    ("staleness", "expected"),
    [
        ("constant", [0.6, 1.44, -0.024, 2.3904]),
        ("polynomial", [0.6, 1.193969696, 0.535778787, 1.384336220]),
        ("hinge", [0.6, 1.44, -0.024, 0.195490909]),
    ],
)
def test_fedasync_mixes_by_staleness(staleness: Any, expected: list[float]) -> None:
    arrivals = [(1.0, 0), (2.0, 1), (-1.0, 3), (4.0, 5)]
    for size in (1, 2):
        seen = arrive(StalenessMixing(0.6, staleness), arrivals, buffer_size=size, delta=False)
        assert seen == pytest.approx(expected[size - 1 :: size], abs=1e-9)


def test_fedasync_through_the_trainer_mixes_as_the_clock_says() -> None:
    # speeds 100 and 50: client 0 (target 1) at 1 and 2, client 1 (target 2) at 2 with d = 2; then 0 at 3 with d = 1.
    # polynomial: .6; .6 + .6 (.4) = .84; a = .6/sqrt 3; a = .6/sqrt 2
    seen = watch(FedAsync(1, mixing=0.6, speeds=[100, 50]), 4, [1.0, 2.0])
    assert [(r.arrived, r.client, r.staleness) for r in seen.arrivals] == [(1, 0, 0), (2, 0, 0), (2, 1, 2), (3, 0, 1)]
    assert seen.weights[:2] == pytest.approx([0.6, 0.84])
    third = 0.84 + 0.6 / 3**0.5 * (2 - 0.84)
    assert seen.weights[2:] == pytest.approx([third, third + 0.6 / 2**0.5 * (1 - third)])


def test_the_proximal_step_of_fedasync() -> None:
    # f = (w - 3)^2 / 2 from w' = 1 with lr .1 and rho .5: 1 -> 1.2; then w - .1 (w - 3) - .05 (w - 1) = 1.37
    module = Quadratic(lr=0.1, start=1.0)
    weights = fit_quadratic(
        FedAsync(1, mixing=1.0, rho=0.5, local_steps=2), module, quadratic_clients([1.0], [3.0]), rounds=1
    )
    assert float(weights) == pytest.approx(1.37)


def test_stale_results_are_rejected_beyond_the_maximum() -> None:
    seen = of_ten(FedAsync(20, staleness="constant", max_staleness=3, speeds=SPEEDS), 5)
    outcomes = {record.outcome for record in seen.arrivals if record.staleness > 3}
    assert outcomes == {"rejected"}
    assert {record.outcome for record in seen.arrivals if record.staleness <= 3} == {"used"}
    # a rejected result does not move the server, so that versions count used ones only
    assert sum(record.moved for record in seen.arrivals) == sum(record.outcome == "used" for record in seen.arrivals)


def test_sampled_staleness_is_uniform_over_the_history() -> None:
    seen = of_ten(FedAsync(41, history=4), 10)
    late = Counter(record.staleness for record in seen.arrivals[4:])
    # 406 draws from 0 to 3: the mean of each count is 101, its sd 9; 41 of each client, sd 6
    assert sorted(late) == [0, 1, 2, 3]
    assert all(abs(count - 101) < 45 for count in late.values())
    assert [record.staleness for record in seen.arrivals[:1]] == [0]
    clients = Counter(record.client for record in seen.arrivals)
    assert all(abs(clients[client] - 41) < 30 for client in range(10))
    # With one model in the history each of two steps goes half of the way on from where the server is.
    callback = FedAsync(2, mixing=1.0, history=1)
    assert float(fit_quadratic(callback, Quadratic(0.5), quadratic_clients([1.0], [4.0]), rounds=1)) == 3.0
    assert list(callback.algorithm.schedule.models) == [1]


# ---- O9, FedBuff ----


@pytest.mark.parametrize(
    ("divide_by", "expected"), [("count", [0.844974747, 1.194974747]), ("weights", [0.989949494, 1.456616160])]
)
def test_fedbuff_moves_when_the_buffer_is_full(divide_by: Any, expected: list[float]) -> None:
    arrivals = [(1.0, 0), (2.0, 1), (3.0, 0), (-4.0, 3)]
    seen = arrive(StalenessWeightedDeltas(divide_by=divide_by), arrivals, buffer_size=2, lr=0.7, delta=True)
    assert seen == pytest.approx(expected, abs=1e-9)


def test_fedbuff_as_flsim_sums_without_division() -> None:
    # average staleness 1: s(0) = sqrt 2, s(1) = 1
    deltas = StalenessWeightedDeltas(divide_by="none", average_staleness=1)
    assert arrive(deltas, [(1.0, 0), (2.0, 1)], buffer_size=2, delta=True) == pytest.approx([2**0.5 + 2])


def test_fedbuff_weighs_by_examples() -> None:
    deltas = StalenessWeightedDeltas(staleness="constant", weighting="samples")
    deltas.begin_fit(federation_of([1, 3]))
    buffer = [result(0.0, 1.0, 0, client=0, samples=1), result(0.0, 2.0, 0, client=1, samples=3)]
    # omega = n / 2: (0.5 * 1 + 1.5 * 2) / 2
    assert float(deltas.merge(scalar(0.0), buffer)) == pytest.approx(1.75)  # type: ignore[arg-type]
    # of 1 and 3 samples, relative to 2: roots, and logarithms of 2 and 4 to that of 3
    for weighting, expected in (("sqrt", [0.5**0.5, 1.5**0.5]), ("log", [math.log(2, 3), math.log(4, 3)])):
        deltas.weighting = weighting
        assert [deltas.weight_of(each) for each in buffer] == pytest.approx(expected)
    deltas.weighting = "samples"
    nobody, somebody = result(0.0, 1.0, 0, client=0, samples=0), result(0.0, 2.0, 0, client=1, samples=4)
    for merge in (deltas.merge, DynamicWeightMean().merge):
        assert merge(scalar(0.0), [nobody]) is None
        assert float(merge(scalar(0.0), [nobody, somebody])) == 2.0  # type: ignore[arg-type]


# ---- O10, dynamic weights ----


def arrived(entries: list[tuple[int, int, int]]) -> list[ClientResult]:
    """Return the results of arrivals (client, samples, staleness) with the values 1, 2, 5 and 0."""
    return [
        result(0.0, value, staleness, client=client, samples=samples, counter=10)
        for value, (client, samples, staleness) in zip((1.0, 2.0, 5.0, 0.0), entries, strict=False)
    ]


@pytest.mark.parametrize(
    ("clients", "beta", "mean"),
    [
        ((0, 1, 2), [0.322712408, 0.481552622, 0.195734970], 2.264492502),
        ((0, 1, 0), [0.235903102, 0.580375378, 0.183721520], 2.315261460),
    ],
)
def test_dynamic_weights(clients: tuple[int, int, int], beta: list[float], mean: float) -> None:
    buffer = arrived(list(zip(clients, (100, 200, 100), (0, 1, 3), strict=True)))
    assert DynamicWeightMean().weights(buffer) == pytest.approx(beta, abs=1e-9)
    merged = DynamicWeightMean().merge(scalar(0.0), buffer)
    assert float(merged) == pytest.approx(mean, abs=1e-9)  # type: ignore[arg-type]
    # mixed in with alpha = .5 from 0
    assert float(Mixing(0.5).step(scalar(0.0), merged)) == pytest.approx(mean / 2, abs=1e-9)  # type: ignore[arg-type]


def test_running_frequency_counts_arrivals_so_far() -> None:
    # two results of one client at once, f = 1 and 2: e / (e + sqrt e) and sqrt e / (e + sqrt e)
    weights = DynamicWeightMean(frequency="arrival").weights(arrived([(0, 1, 0), (0, 1, 0)]))
    assert weights == pytest.approx([0.622459331, 0.377540669], abs=1e-9)
    # Until the flush the first one's staleness grows to 3, so that its exponent is 1/2: e and sqrt e again.
    late, fresh = (result(0.0, 1.0, 0, client=counter, counter=counter) for counter in (7, 10))
    weights = DynamicWeightMean(staleness_at="flush").weights([late, fresh])
    assert weights == pytest.approx([0.377540669, 0.622459331], abs=1e-9)
    # The mean is of models, not of what they moved.
    assert float(DynamicWeightMean().merge(scalar(0.0), [result(7.0, 2.0, 0)])) == 2.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ("upload", [0.428231, 1.386698, 1.693349, 1.680008, 2.340004]),
        ("upload-literal", [0.428231, 1.401556, 1.700778, 1.683722, 2.341861]),
        ("version", [0.5, 1.416667, 1.729473, 1.648745, 2.345512]),
    ],
)
def test_dynamic_weights_on_the_clock(stamp: Any, expected: list[float]) -> None:
    seen = of_ten(DynamicWeightFedBuff(3, 3, mu=0.0, speeds=SPEEDS, stamp=stamp), 5)
    assert seen.weights == pytest.approx(expected, abs=1e-6)


# ---- O17, the clock ----


def test_the_first_uploads_come_in_order() -> None:
    seen = of_ten(FedAsync(10, speeds=SPEEDS), 10).arrivals
    assert [(round(r.arrived, 4), r.client, r.staleness) for r in seen[:7]] == [
        (1.0, 0, 0),
        (1.0526, 1, 1),
        (1.1111, 2, 2),
        (1.1765, 3, 3),
        (1.25, 4, 4),
        (2.0, 0, 4),
        (2.1053, 1, 4),
    ]
    counts = Counter(record.client for record in seen)
    assert [counts[client] for client in range(10)] == [20, 19, 18, 17, 16, 4, 3, 2, 1, 0]
    assert seen[-1].arrived == 20.0
    assert sum(record.staleness for record in seen) / 100 == pytest.approx(6.61)
    assert max(record.staleness for record in seen) == 49


def test_ties_go_to_the_smaller_client() -> None:
    seen = watch(FedAsync(1, speeds=[100, 50]), 6, [0.0, 0.0]).arrivals
    assert [(r.arrived, r.client, r.staleness) for r in seen] == [
        (1, 0, 0),
        (2, 0, 0),
        (2, 1, 2),
        (3, 0, 1),
        (4, 0, 0),
        (4, 1, 2),
    ]


def test_three_tenths_tie_with_a_tenth_three_times() -> None:
    # in floating point 0.1 + 0.1 + 0.1 > 0.3
    seen = watch(FedAsync(4, clock=VirtualClock(1, work=0.1, delay=[0, 0.2])), 1, [0.0, 0.0]).arrivals
    assert [(r.client, r.arrived) for r in seen] == [(0, 0.1), (0, 0.2), (0, 0.3), (1, 0.3)]
