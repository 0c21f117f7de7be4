"""Attacks: values of byzfl 0.0.11, who attacks, what they do to means and medians."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.begun import federation_of
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic

from fl_lightning import FedAvg, FedBuff, parts

HONEST = [
    [1.0, -2.0, 0.5, 3.0],
    [1.5, -1.0, 0.0, 2.5],
    [0.5, -2.5, 1.0, 3.5],
    [1.25, -1.5, 0.25, 2.0],
    [0.75, -1.75, 0.75, 3.25],
]


def attached(attack: parts.Attack, clients: int = 7, size: int = 4, seed: int = 0) -> parts.Attack:
    attack.begin_fit(federation_of([1] * clients, size, seed=seed))
    return attack


def results(rows: Sequence[Sequence[float]]) -> list[parts.ClientResult]:
    start = torch.zeros(len(rows[0]), dtype=torch.float64)
    return [parts.ClientResult(parts.Task(k, k, 1), start, start + torch.tensor(row), 1) for k, row in enumerate(rows)]


# ---- what attackers send ----


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        (parts.InnerProductManipulation([5, 6], scale=2.0), [-2.0, 3.5, -1.0, -5.7]),
        # byzfl adds tau standard deviations, the paper takes z of them away
        (
            parts.ALittleIsEnough([5, 6], z=-1.5),
            [1.5929270612815711, -0.9114745084375788, 1.0929270612815711, 3.7531195934094224],
        ),
        (parts.Mimic([5, 6]), [1.0, -2.0, 0.5, 3.0]),
    ],
    ids=repr,
)
def test_values_of_byzfl(attack: parts.Attack, expected: list[float]) -> None:
    everyone = attached(attack).collude(results([*HONEST, [9.0] * 4, [-9.0] * 4]))
    for result, honest in zip(everyone, HONEST, strict=False):
        assert result.delta.tolist() == honest
    for result in everyone[5:]:
        assert result.delta.tolist() == pytest.approx(expected, abs=1e-12)
    alone = results(HONEST)
    assert attack.collude(alone) is alone  # nobody attacks
    assert attached(parts.Mimic(range(5))).collude(alone) is alone  # nobody is honest


# 50 clients, 24 of them attackers: s = 26 - 24 = 2 supporters, Phi(z) = 48 / 50, z = 1.7507 (Baruch et al. 2019). Of 5
# with 3 attackers the majority needs nobody, and s = 1: Phi(z) = 4 / 5.
@pytest.mark.parametrize(("honest", "clients", "z"), [(26, 50, 1.75068607), (2, 5, 0.84162123)])
def test_the_papers_own_z(honest: int, clients: int, z: float) -> None:
    rows = torch.randn(clients, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    attack = attached(parts.ALittleIsEnough(list(range(honest, clients))), clients=clients, size=2)
    sent = attack.collude(results(rows.tolist()))[-1].delta
    assert ((rows[:honest].mean(0) - sent) / rows[:honest].std(0)).tolist() == pytest.approx([z] * 2, abs=5e-8)
    # One honest update has no spread that is known.
    assert attached(parts.ALittleIsEnough([1])).collude(results(HONEST[:2]))[1].delta.tolist() == HONEST[0]


def test_single_updates() -> None:
    [result, *_] = results(HONEST)
    assert attached(parts.SignFlipping([0], scale=3.0)).upload(result).delta.tolist() == [-3.0, 6.0, -1.5, -9.0]
    assert attached(parts.SignFlipping([1])).upload(result) is result
    noise = [
        attached(parts.GaussianAttack([0], std=2.0), size=4, seed=seed).upload(result).delta for seed in range(500)
    ]
    assert float(torch.stack(noise).std()) == pytest.approx(2.0, rel=0.06)


def test_a_share_of_the_clients_is_drawn_by_the_seed() -> None:
    drawn = {attached(parts.SignFlipping(0.3), clients=10, seed=seed).attackers for seed in range(30)}
    assert {len(attackers) for attackers in drawn} == {3}
    assert len(drawn) > 20
    some = attached(parts.SignFlipping(0.29), clients=100).attackers
    assert (len(some), some) == (29, attached(parts.Mimic(0.29), clients=100).attackers)
    assert attached(parts.SignFlipping(0.0)).attackers == frozenset()


# ---- in fits ----

OPTIMA = [[1.0], [1.0], [1.0], [1.0], [4.0]]
BOUNDED = parts.TrimmedMean(0, before=parts.NormBounding(2.0))


@pytest.mark.parametrize(
    ("attack", "mean", "median"),
    [
        # the mean of four ones and what client 4 sends
        (parts.SignFlipping([4]), (4 - 4) / 5, 1.0),
        (parts.InnerProductManipulation([4], scale=6.0), (4 - 6) / 5, 1.0),
        (parts.Mimic([4]), 1.0, 1.0),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "make", [lambda **k: FedAvg(1.0, **k), lambda **k: FedBuff(5, 5, **k)], ids=["FedAvg", "FedBuff"]
)
def test_what_they_do_to_a_mean_and_to_a_median(attack: parts.Attack, mean: float, median: float, make: Any) -> None:
    clients = clients_that_reach(OPTIMA, [1] * 5)
    for options, expected in (({}, mean), ({"aggregation": parts.Median()}, median)):
        weights = fit_quadratic(make(exchange=attack, **options), Quadratic(1.0, [0.0]), clients, 1)
        assert float(weights[0]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"exchange": [parts.SignFlipping([4], scale=10.0), parts.Clip(2.0)]}, (4 - 2) / 5),
        ({"exchange": [parts.Clip(2.0), parts.SignFlipping([4], scale=10.0)]}, (4 - 20) / 5),
        ({"exchange": parts.InnerProductManipulation([4], scale=50.0), "aggregation": BOUNDED}, (4 - 2) / 5),
    ],
)
def test_bounds_before_and_after_an_attack(options: dict[str, Any], expected: float) -> None:
    weights = fit_quadratic(FedAvg(1.0, **options), Quadratic(1.0, [0.0]), clients_that_reach(OPTIMA, [1] * 5), 1)
    assert float(weights[0]) == pytest.approx(expected, abs=1e-12)
