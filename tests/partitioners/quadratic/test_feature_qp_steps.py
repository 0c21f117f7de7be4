"""The steps of the QP partition by features: solver and bound, moves, buckets, dealing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fl_lightning.partitioners import FeatureQPPartitioner, quantile_buckets
from fl_lightning.partitioners.base import deal
from fl_lightning.partitioners.limited_classes import share_equally
from fl_lightning.partitioners.quadratic.draws import group_sums
from fl_lightning.partitioners.quadratic.solver import lower_bound, solve_grouped_qp

# oracle O13e: (class, feature) = 00, 01, 10, 11 with 3, 2, 1, 4 samples; two clients of 5
GROUPS = np.array([[0, 2], [0, 3], [1, 2], [1, 3]])
TARGET = np.array([[4.0, 1.0, 3.0, 2.0], [1.0, 4.0, 2.0, 3.0]])
ROWS, COLS = np.array([5, 5]), np.array([3, 2, 1, 4])
OPTIMA = [np.array([first, COLS - first]) for first in ([2, 2, 0.5, 0.5], [2.5, 1.5, 0, 1])]


def loss(alpha: np.ndarray) -> float:
    return float(((group_sums(alpha, GROUPS, 4) - TARGET) ** 2).sum())


def test_the_bound_is_never_above_the_optimum() -> None:
    for share in [0.0, 1 / 3, 1.0]:
        between = share * OPTIMA[0] + (1 - share) * OPTIMA[1]
        solved, bound = solve_grouped_qp(TARGET, GROUPS, ROWS, COLS)
        for alpha in (between, solved):
            assert 1.0 - 1e-7 <= lower_bound(alpha, TARGET, GROUPS, ROWS, COLS) <= 1.0
        assert bound <= 1.0


@pytest.mark.parametrize("factor", [1.0, 1e5])
def test_the_bound_holds_whatever_the_prices_of_the_solver(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # prices that are wrong by the solver's tolerance, and by more, lower the bound and never raise it
    from scipy import optimize

    original = optimize.linprog

    def disturbed(*args: object, **options: object) -> object:
        solution = original(*args, **options)
        rng = np.random.default_rng(0)
        solution.eqlin.marginals = solution.eqlin.marginals + rng.normal(scale=1e-7 * factor, size=6)
        solution.fun += 1.0
        return solution

    monkeypatch.setattr(optimize, "linprog", disturbed)
    assert lower_bound(OPTIMA[0], TARGET, GROUPS, ROWS, COLS) <= 1.0


@settings(max_examples=20, deadline=None)
@given(
    arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=st.integers(0, 20)),
    st.integers(0, 2**32),
)
def test_the_solution_has_its_margins_and_its_loss_is_the_bound(feasible: np.ndarray, seed: int) -> None:
    feasible = feasible + (feasible.sum(axis=1) == 0)[:, None] + (feasible.sum(axis=0) == 0)
    rng = np.random.default_rng(seed)
    groups = rng.integers(3, size=(feasible.shape[1], 2)) + np.array([0, 3])
    target = rng.uniform(-5, 40, size=(len(feasible), 6))
    alpha, bound = solve_grouped_qp(target, groups, feasible.sum(axis=1), feasible.sum(axis=0))
    reached = ((group_sums(alpha, groups, 6) - target) ** 2).sum()

    np.testing.assert_allclose(alpha.sum(axis=1), feasible.sum(axis=1), rtol=0, atol=1e-9)
    np.testing.assert_allclose(alpha.sum(axis=0), feasible.sum(axis=0), rtol=0, atol=1e-9)
    assert alpha.min() >= 0
    assert reached - 1e-5 * max(reached, 1) <= bound <= ((group_sums(feasible, groups, 6) - target) ** 2).sum() + 1e-6


def test_the_loss_of_every_move_is_known() -> None:
    partitioner = FeatureQPPartitioner(2, burn_in=10**6, search=0, step=0.02, burn_in_stop=1.25**0.5)
    stopped = partitioner.draw_solution(OPTIMA[0], 1.0, TARGET, np.random.default_rng(0), GROUPS)

    # a step is at most 0.02 * 3.5, which changes a residual of at most 0.8 by as much, in four places of two features
    assert 1.25 - 1e-9 <= loss(stopped) < 1.25 + 0.5
    assert stopped.min() >= 0
    np.testing.assert_allclose(stopped.sum(axis=1), ROWS)
    np.testing.assert_allclose(stopped.sum(axis=0), COLS)


@pytest.mark.parametrize(("step", "rule"), [(1.0, "relative"), (0.5, "absolute")])
def test_the_search_returns_its_best_matrix(step: float, rule: Any) -> None:
    start = np.outer(ROWS, COLS) / 10.0
    found, last = (
        FeatureQPPartitioner(2, **moves, step=step, step_rule=rule).draw_solution(
            start, 1.0, TARGET, np.random.default_rng(1), GROUPS
        )
        for moves in ({"burn_in": 0, "search": 20_000}, {"burn_in": 20_000, "search": 0})
    )

    # the walk passes near the optima, of loss 1, many times, and does not end there
    assert 1 - 1e-9 <= loss(found) < 1.05
    assert loss(last) > 1.1


def test_buckets_go_by_rank() -> None:
    for values, num_buckets, expected in [
        ([40, 10, 30, 20], 2, [1, 0, 1, 0]),
        ([1.5, 2.5, 3.5, 4.5, 5.5, 6.5], 3, [0, 0, 1, 1, 2, 2]),
        # equal values share a bucket
        ([0, 0, 0, 9], 2, [0, 0, 0, 1]),
        ([0, 9, 9, 9], 2, [0, 1, 1, 1]),
        ([5, 5, 5], 4, [0, 0, 0]),
        ([3, 1, 2], 10, [2, 0, 1]),
        ([3, 1, 2], 1, [0, 0, 0]),
    ]:
        assert quantile_buckets(np.array(values), num_buckets).tolist() == expected


def test_samples_are_dealt_by_counts() -> None:
    groups = np.array([1, 0, 1, 0, 1, 0])
    counts = np.array([[1, 2], [2, 0]])
    in_order = deal(groups, counts, np.random.default_rng(0), mix=False)
    mixed = {frozenset(deal(groups, counts, np.random.default_rng(seed))[1].tolist()) for seed in range(30)}

    assert [sorted(client) for client in in_order] == [[0, 1, 2], [3, 5]]
    assert mixed == {frozenset({1, 3}), frozenset({1, 5}), frozenset({3, 5})}


def test_a_class_is_shared_equally_among_its_holders() -> None:
    holders = np.array([[True, False, False], [True, True, False], [True, True, False]])

    assert share_equally(holders, np.array([8, 3, 5])).tolist() == [[3, 0, 0], [3, 2, 0], [2, 1, 0]]
