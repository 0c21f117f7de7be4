"""Robust aggregations: values of byzfl 0.0.11, breakdown points, invariances, memory, resuming."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.begun import federation_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fl_lightning import parts
from fl_lightning.parts.aggregations import robust
from fl_lightning.parts.part import walk

SEVEN = [
    [1.0, -2.0, 0.5, 3.0],
    [1.5, -1.0, 0.0, 2.5],
    [0.5, -2.5, 1.0, 3.5],
    [1.25, -1.5, 0.25, 2.0],
    [0.75, -1.75, 0.75, 3.25],
    [40.0, 30.0, -20.0, -10.0],
    [-35.0, 25.0, 15.0, -30.0],
]


def merged(rule: parts.RobustAggregation, updates: Sequence[Sequence[float]] | Tensor, *, fresh: bool = True) -> Tensor:
    """Return what a rule makes of updates, from a model that is 0."""
    rows = torch.as_tensor(updates, dtype=torch.float64)
    start = torch.zeros(rows.shape[1], dtype=torch.float64)
    if fresh:
        for part in walk(rule):
            part.begin_fit(federation_of([1] * len(rows), len(start)))
    moved = rule.merge(
        start, [parts.ClientResult(parts.Task(slot, slot, 1), start, row, 1) for slot, row in enumerate(rows)]
    )
    assert moved is not None
    return moved


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (parts.Median(), [1.0, -1.5, 0.5, 2.5]),
        (parts.TrimmedMean(2), [1.0, -1.4166666666666667, 0.5, 2.5]),
        (parts.TrimmedMean(0.29), [1.0, -1.4166666666666667, 0.5, 2.5]),
        (
            parts.GeometricMedian(smoothing=0.1, max_iterations=3, tolerance=0.0),
            [1.1472652492120774, -1.4132368926839933, 0.34625729672760874, 2.4988256554875257],
        ),
        (
            parts.GeometricMedian(max_iterations=2000, tolerance=0.0),
            [1.058399225964482, -1.5338317200355152, 0.43489461625264564, 2.6578982413865866],
        ),
        # byzfl's Krum(f) adds up one neighbour more than the paper's: it is that of f - 1
        (parts.Krum(1), [1.0, -2.0, 0.5, 3.0]),
        (parts.Krum(1, num_selected=5), [1.0, -1.75, 0.5, 2.85]),
        (
            parts.CenteredClipping(2.0, iterations=3),
            [0.9837795390251354, -1.1482675683867232, 0.3871369881547032, 2.263888849254197],
        ),
        (parts.Median(before=parts.NearestNeighborMixing(2)), [1.0, -1.75, 0.5, 2.85]),
        (
            parts.TrimmedMean(0, before=parts.NearestNeighborMixing(2)),
            [1.1142857142857143, -0.035714285714286, 0.3, 1.507142857],
        ),
    ],
    ids=repr,
)
def test_values_of_byzfl(rule: parts.RobustAggregation, expected: list[float]) -> None:
    assert merged(rule, SEVEN).tolist() == pytest.approx(expected, abs=1e-9)


def test_centered_clipping_goes_on_from_the_last_center() -> None:
    rule = parts.CenteredClipping(2.0)
    merged(rule, SEVEN)
    expected = [0.8329867802837947, -0.8370828811870361, 0.287195766753215, 1.7587476089610423]
    assert merged(rule, SEVEN, fresh=False).tolist() == pytest.approx(expected, abs=1e-12)


def test_krum_mixing_and_a_tolerance_by_hand() -> None:
    # from 0 to 28/13, and on to 868/313: the second step is less than a quarter of the way
    assert merged(parts.GeometricMedian(tolerance=0.25), [[1.0], [4.0], [7.0]]).tolist() == [pytest.approx(868 / 313)]
    assert merged(parts.Krum(1), [[0.0], [1.0], [3.0], [10.0], [16.5]]).tolist() == [1.0]  # two nearest others: 1 + 4
    # With three updates, two of them arbitrary, the nearest one is the update itself.
    assert merged(parts.Median(before=parts.NearestNeighborMixing(2)), [[1.0], [2.0], [9.0]]).tolist() == [2.0]


def test_buckets_are_means_of_two_and_change_from_round_to_round() -> None:
    # powers of two: a sum tells which were added
    rule, seen = parts.Bucketing(2), set()
    rule.begin_fit(federation_of([1] * 5, seed=4))
    for round_index in range(12):
        rule.begin_round(round_index)
        updates = parts.Updates([_result(slot, [2.0**slot]) for slot in range(5)])
        first, second, third = next(rule.mix(updates).blocks()).flatten().tolist()
        assert 2 * first + 2 * second + third == 31.0
        [total] = rule.mix(updates).mixed(torch.tensor([[2.0, 2.0, 1.0]], dtype=torch.float64)).blocks()
        assert total.tolist() == [[31.0]]
        seen.add((first, second, third))
    assert len(seen) > 6


def _result(slot: int, row: list[float]) -> parts.ClientResult:
    vector = torch.tensor(row, dtype=torch.float64)
    return parts.ClientResult(parts.Task(slot, slot, 1), torch.zeros_like(vector), vector, 1)


# ---- properties ----

RULES: list[Callable[[int], parts.RobustAggregation]] = [
    lambda f: parts.Median(),
    lambda f: parts.TrimmedMean(f),
    lambda f: parts.Krum(f),
    lambda f: parts.Krum(f, num_selected=2),
    lambda f: parts.GeometricMedian(),
    lambda f: parts.Median(before=parts.NearestNeighborMixing(f)),
]
NUMBERS = st.floats(-1.0, 1.0)


@st.composite
def attacked(draw: Any) -> tuple[int, Tensor, Tensor]:
    """Return f, honest updates within [-1, 1], and f arbitrary ones, of which honest ones are more than f + 2."""
    f = draw(st.integers(1, 3))
    honest = draw(st.lists(st.lists(NUMBERS, min_size=2, max_size=2), min_size=f + 3, max_size=f + 6))
    anywhere = st.sampled_from([-1e12, -30.0, -1.0, 0.0, 2.0, 1e6, 1e15])
    bad = draw(st.lists(st.lists(anywhere, min_size=2, max_size=2), min_size=f, max_size=f))
    return f, torch.tensor(honest, dtype=torch.float64), torch.tensor(bad, dtype=torch.float64)


@pytest.mark.parametrize("make", RULES, ids=lambda make: type(make(1)).__name__)
@settings(max_examples=15, deadline=None)
@given(case=attacked())
def test_below_the_breakdown_point_no_attack_leads_far_away(make: Any, case: tuple[int, Tensor, Tensor]) -> None:
    # the geometric median's bound is 2 (m - f) / (m - 2 f) times the largest honest norm (Lopuhaa, Rousseeuw 1991)
    f, honest, bad = case
    m = len(honest) + f
    moved = merged(make(f), torch.cat([honest, bad]))
    bound = 2 * (m - f) / (m - 2 * f) * max(1e-3, float(honest.norm(dim=1).max()))
    assert float(moved.norm()) <= bound + 1e-3


@pytest.mark.parametrize("make", [*RULES, lambda f: parts.CenteredClipping(0.7, 2)], ids=lambda make: repr(make(1)))
def test_the_order_of_clients_does_not_matter(make: Any) -> None:
    rows = torch.randn(9, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for seed in range(5):
        order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
        assert torch.allclose(merged(make(2), rows[order]), merged(make(2), rows), rtol=0, atol=1e-9)


@pytest.mark.parametrize("make", [*RULES, lambda f: parts.CenteredClipping(0.7, 2)], ids=lambda make: repr(make(1)))
def test_blocks_of_parameters_change_nothing(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(9, 23, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    whole = merged(make(2), rows)
    monkeypatch.setattr(robust, "BLOCK", 4)
    for kept in (robust._KEPT, 0):
        monkeypatch.setattr(robust, "_KEPT", kept)
        assert torch.allclose(merged(make(2), rows), whole, rtol=0, atol=1e-12)


# ---- in fits ----


def test_updates_count_from_the_model_that_each_client_received() -> None:
    start = torch.tensor([10.0, 20.0], dtype=torch.float64)
    rule = parts.Median()
    rows = torch.tensor([[1.0, 2.0], [2.0, -1.0], [9.0, 1.0]], dtype=torch.float64)
    moved = rule.merge(
        start, [replace(_result(k, []), received=start + k, vector=start + k + row) for k, row in enumerate(rows)]
    )
    assert moved is not None
    assert moved.tolist() == [12.0, 21.0]
