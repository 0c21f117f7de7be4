"""The steps of the QP partition: solver, rectangle moves, rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fl_lightning.partitioners import QPPartitioner
from fl_lightning.partitioners.quadratic.rounding import round_columns, round_margins
from fl_lightning.partitioners.quadratic.solver import _descend, solve_grouped_qp, solve_transport_qp

# oracle O13a: target, and the optimum for rows (5, 5) and columns (6, 4)
TARGET = np.array([[4.0, 1.0], [1.0, 4.0]])
OPTIMUM = np.array([[4.5, 0.5], [1.5, 3.5]])

CIRCLES = [[9, 0, 0, 0, 0], [0, 4.75, 0, 0, 0], [2, 0, 0, 0, 0], [0] * 5, [0] * 5]
OUT_OF_CIRCLES = [[5, 0, 0, 0, 0], [0, 3.921875, *[0.359375] * 3], *[[0, 0.359375, *[1.546875] * 3]] * 3]

SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 5))
MATRICES = SHAPES.flatmap(
    lambda shape: st.tuples(
        arrays(np.int64, shape, elements=st.integers(0, 20)),
        arrays(np.float64, shape, elements=st.floats(-5, 30, width=16)),
    )
)


def move(alpha: np.ndarray, target: np.ndarray, rng: Any, burn_in: int = 0, search: int = 0, **options: Any) -> Any:
    partitioner = QPPartitioner(2, burn_in=burn_in, search=search, **options)
    return partitioner.draw_solution(alpha, 1.0, target, rng)


def test_the_solver_finds_the_nearest_matrix() -> None:
    for target, rows, cols, optimum, loss in [
        # oracles O13a to O13c
        (TARGET, (5, 5), (6, 4), OPTIMUM, 1),
        ([[5, 0], [0, 5]], (5, 5), (6, 4), [[5, 0], [1, 4]], 2),
        ([[3, 0, 0], [0, 2, 2], [1, 1, 4]], (3, 4, 6), (5, 4, 4), [[3, 0, 0], [0.5, 2.5, 1], [1.5, 1.5, 3]], 3),
        # rows of the target need not have the sums that are asked for
        (np.zeros((2, 3)), (3, 6), (3, 3, 3), [[1, 1, 1], [2, 2, 2]], 15),
        # a single row or column
        ([[0, 0]], (7,), (3, 4), [[3, 4]], 25),
        ([[9], [9]], (3, 4), (7,), [[3], [4]], 61),
        # sums of 0
        ([[4, 4], [4, 4]], (0, 3), (3, 0), [[0, 0], [3, 0]], 49),
        ([[1, 2]], (0,), (0, 0), [[0, 0]], 5),
        # full steps of Newton's method go round in circles; the multipliers are u = (-1, a, b, b, b) and
        # v = (-3, a, b, b, b) with 5 a + 3 b = 0.25 and a + 7 b = 5
        (CIRCLES, (5,) * 5, (5,) * 5, OUT_OF_CIRCLES, 42.99609375),
    ]:
        solution = solve_transport_qp(np.array(target), np.array(rows), np.array(cols))

        np.testing.assert_allclose(solution, optimum, atol=1e-9)
        assert ((solution - np.array(target)) ** 2).sum() == pytest.approx(loss)
        if min(*rows, *cols) > 0:
            # What full steps end with, if they go round in circles.
            zeros = np.zeros(len(rows)), np.zeros(len(cols))
            problem = np.array(target, dtype=float), np.array(rows), np.array(cols)
            np.testing.assert_allclose(_descend(*zeros, *problem), optimum, atol=1e-8)
            # Where each column is a group of its own, the nearest sums of groups are the nearest matrix.
            solution, bound = solve_grouped_qp(problem[0], np.arange(len(cols))[:, None], *problem[1:])
            np.testing.assert_allclose(solution, optimum, atol=1e-4)
            assert bound == pytest.approx(loss, abs=1e-5)


@settings(max_examples=30, deadline=None)
@given(MATRICES, st.randoms(use_true_random=False))
def test_the_solution_is_the_nearest_of_its_margins(matrices: tuple[np.ndarray, np.ndarray], random: Any) -> None:
    feasible, target = matrices
    solution = solve_transport_qp(target, feasible.sum(axis=1), feasible.sum(axis=0))

    np.testing.assert_allclose(solution.sum(axis=1), feasible.sum(axis=1), rtol=0, atol=1e-9)
    np.testing.assert_allclose(solution.sum(axis=0), feasible.sum(axis=0), rtol=0, atol=1e-9)
    assert solution.min() >= 0
    # the variational inequality of a projection, for a feasible matrix
    assert ((target - solution) * (feasible - solution)).sum() <= 1e-6


def test_a_failing_solver_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = np.array([[5, 0], [0, 5]]), np.array([5, 5]), np.array([6, 4])
    with monkeypatch.context() as patch:
        patch.setattr("cvxpy.Problem.solve", lambda problem, *, solver: {"CLARABEL": None}[solver])
        patch.setattr("cvxpy.Problem.status", "unbounded")
        with pytest.raises(RuntimeError, match="CLARABEL found no solution of the QP, status 'unbounded'"):
            solve_transport_qp(*problem)
    monkeypatch.setattr("fl_lightning.partitioners.quadratic.solver.approximate", lambda *args: np.ones((2, 2)))
    monkeypatch.setattr("fl_lightning.partitioners.quadratic.solver._MAX_ITERATIONS", 1)
    with pytest.raises(RuntimeError, match=r"margins are off by \d\.\de[+-]\d+ after 1 Newton steps"):
        solve_transport_qp(*problem)


class ScriptedGenerator:
    """Draws rows 0 and 1, columns 0 and 1, and a given share of the bound."""

    def __init__(self, share: float) -> None:
        self.share = share

    def integers(self, high: int, size: tuple[int, int]) -> np.ndarray:
        return np.arange(2).reshape(2, 1)

    def random(self, size: int) -> np.ndarray:
        return np.full(size, self.share)


def test_a_rectangle_of_a_quarter_sample() -> None:
    for step, rule, share in [
        # the bound is min(4.5, 3.5), or 0.5 samples
        (1.0, "relative", 0.25 / 3.5),
        (0.5, "relative", 0.5 / 3.5),
        (0.5, "absolute", 0.5),
        (9.0, "absolute", 0.25 / 3.5),
    ]:
        # oracle O13d
        moved = move(OPTIMUM, TARGET, ScriptedGenerator(share), burn_in=1, step=step, step_rule=rule)

        np.testing.assert_allclose(moved, [[4.25, 0.75], [1.75, 3.25]])
        assert ((moved - TARGET) ** 2).sum() == pytest.approx(1.25)


def test_one_chunk_of_moves_follows_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_lightning.partitioners.quadratic.draws._CHUNK", 1)
    moved = move(OPTIMUM, TARGET, ScriptedGenerator(0.5), burn_in=3, step=0.5, step_rule="absolute")
    np.testing.assert_allclose(moved, [[3.75, 1.25], [2.25, 2.75]])


def test_the_loss_of_every_move_is_known() -> None:
    # by O13d the loss is 1 + 4 e^2, e being how far the first entry has moved from 4.5; the walk stops beyond e = 0.25
    rng = np.random.default_rng(0)
    stopped = move(OPTIMUM, TARGET, rng, burn_in=10**6, step=0.02, burn_in_stop=1.25**0.5)
    moved = abs(stopped[0, 0] - 4.5)

    # the last step is at most 0.02 * 3.75
    assert 0.25 - 1e-9 <= moved < 0.25 + 0.075


@pytest.mark.parametrize(("step", "rule"), [(1.0, "relative"), (0.5, "absolute")])
def test_the_search_returns_its_best_matrix(step: float, rule: str) -> None:
    start, options = np.array([[3.0, 2.0], [3.0, 2.0]]), {"step": step, "step_rule": rule}
    found = move(start, TARGET, np.random.default_rng(1), search=20_000, **options)
    last = move(start, TARGET, np.random.default_rng(1), burn_in=20_000, **options)

    # the walk passes the optimum, of loss 1, many times, and does not end there
    assert 1 <= ((found - TARGET) ** 2).sum() < 1.001
    assert ((last - TARGET) ** 2).sum() > 1.01


@settings(max_examples=50, deadline=None)
@given(MATRICES, st.sampled_from(["relative", "absolute"]), st.integers(0, 2**32))
def test_moves_keep_margins_and_signs(matrices: tuple[np.ndarray, np.ndarray], rule: Any, seed: int) -> None:
    alpha, target = matrices[0].astype(float), matrices[1]
    rng = np.random.default_rng(seed)
    for moves in ({"burn_in": 200}, {"search": 200}):
        moved = move(alpha, target, rng, **moves, step=0.9, step_rule=rule)
        np.testing.assert_allclose(moved.sum(axis=1), alpha.sum(axis=1), rtol=0, atol=1e-9)
        np.testing.assert_allclose(moved.sum(axis=0), alpha.sum(axis=0), rtol=0, atol=1e-9)
        assert moved.min() >= 0


def test_rounding_goes_to_the_nearest_matrix_of_the_same_margins() -> None:
    alpha = np.array([[0.9, 0.1, 2.0], [0.1, 0.9, 0.0]])

    assert round_margins(alpha).tolist() == [[1, 0, 2], [0, 1, 0]]
    # two in place of 0.9, and one each of 0.45, would be nearer by the sum of 1 - 2 f
    alpha = np.array([[0.9, 0.55, 0.55], [0.55, 0.45, 0.0], [0.55, 0.0, 0.45]])
    assert np.abs(round_margins(alpha) - alpha).max() < 1


def test_noise_around_whole_numbers_is_not_rounded_down() -> None:
    assert round_margins(np.array([[3 - 1e-11, 1e-11], [0.0, 2.0]])).tolist() == [[3, 0], [0, 2]]


@settings(max_examples=20, deadline=None)
@given(MATRICES, st.integers(0, 2**32))
def test_rounding_moves_no_entry_by_one_and_keeps_margins(matrices: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    start, target = matrices
    alpha = move(start.astype(float), target, np.random.default_rng(seed), burn_in=200, step=0.9)
    rounded = round_margins(alpha)

    assert rounded.sum(axis=1).tolist() == start.sum(axis=1).tolist()
    assert rounded.sum(axis=0).tolist() == start.sum(axis=0).tolist()
    assert rounded.min() >= 0
    assert np.abs(rounded - alpha).max() < 1


def test_the_original_rounding_changes_rows_and_repairs_columns() -> None:
    # np.round gives [[4, 0], [2, 4]]: columns are right as they are
    assert round_columns(OPTIMUM, np.random.default_rng(0)).tolist() == [[4, 0], [2, 4]]
    alpha = np.full((4, 2), 2.5)
    rounded = round_columns(alpha, np.random.default_rng(0))

    # rounded half to even, both columns lack 2
    assert rounded.sum(axis=0).tolist() == [10, 10]
    assert rounded.min() >= 2
    # rounded to 1, 1, 1 and 0, the first column has one too many, which the last row cannot give
    alpha = np.array([[0.6, 2.0], [0.6, 2.0], [0.6, 2.0], [0.2, 2.0]])
    assert {round_columns(alpha, np.random.default_rng(seed))[3, 0] for seed in range(9)} == {0}
