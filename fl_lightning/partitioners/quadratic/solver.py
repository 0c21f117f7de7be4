"""The quadratic programs behind the QP partitions: the matrix of given margins that is nearest to a target."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fl_lightning.partitioners.quadratic.draws import group_sums

_MAX_ITERATIONS = 100

Pair = tuple[np.ndarray, np.ndarray]


def solve_transport_qp(target: np.ndarray, row_sums: np.ndarray, col_sums: np.ndarray) -> np.ndarray:
    """Return the non-negative matrix of given margins that is nearest to a target (Xue et al. 2021; eq. (46)).

    Minimises ``sum((alpha - target)**2)`` subject to ``alpha.sum(1) == row_sums``, ``alpha.sum(0) == col_sums`` and
    ``alpha >= 0``; the solution is unique. Where the projection without ``alpha >= 0``, a closed form, is non-negative,
    it is the solution. Otherwise CLARABEL, through cvxpy, finds which entries are positive, and the optimality
    conditions on those entries are solved exactly.

    Equations are numbered as in ``docs/references.md``.

    Args:
        target: The wanted matrix, shape (T, K).
        row_sums: Sums over the columns, not negative, shape (T,).
        col_sums: Sums over the rows, not negative, shape (K,), with the same total.

    Returns:
        The optimum, float64, shape (T, K); its margins are right to 1e-9 (1e-12 of the total, if that is more).

    Raises:
        RuntimeError: If the solver fails.
    """
    target = np.asarray(target, dtype=np.float64)
    rows = np.asarray(row_sums, dtype=np.float64)
    cols = np.asarray(col_sums, dtype=np.float64)
    optimal = np.zeros_like(target)
    if rows.sum() == 0:
        return optimal
    # A sum of 0 leaves nothing to choose in its row or column.
    free_rows = rows > 0
    free_cols = cols > 0
    free = np.ix_(free_rows, free_cols)
    optimal[free] = _solve(target[free], rows[free_rows], cols[free_cols])
    return optimal


def _solve(target: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    row_gap: np.ndarray = rows - target.sum(axis=1)
    col_gap = cols - target.sum(axis=0)
    num_rows, num_cols = target.shape
    # This is the nearest matrix of the given margins, negative entries allowed.
    projection: np.ndarray = target + row_gap[:, None] / num_cols + col_gap / num_rows - row_gap.sum() / target.size
    if projection.min() >= 0:
        return projection
    start = approximate(target, rows, cols)
    return polish(start, target, rows, cols)


def approximate(target: np.ndarray, rows: np.ndarray, cols: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Return the optimum to about 1e-7 of the mean entry; with groups that of ``solve_grouped_qp``.

    Raises:
        RuntimeError: If the solver fails.
    """
    import cvxpy as cp
    from scipy import sparse

    # The solver's tolerances suit entries near 1.
    scale = rows.sum() / (len(rows) * len(cols))
    alpha = cp.Variable((len(rows), len(cols)), nonneg=True)
    sums: Any = alpha
    if groups is not None:
        columns = np.repeat(np.arange(len(cols)), groups.shape[1])
        ones = np.ones(groups.size)
        sums = alpha @ sparse.csr_array((ones, (columns, groups.ravel())), shape=(len(cols), target.shape[1]))
    # The last column's sum follows from the others.
    margins = [
        alpha.sum(axis=1) == rows / scale,
        alpha.sum(axis=0)[:-1] == cols[:-1] / scale,
    ]
    distance = cp.sum_squares(sums - target / scale)  # type: ignore[attr-defined]
    problem: Any = cp.Problem(cp.Minimize(distance), margins)
    problem.solve(solver=cp.CLARABEL)
    if alpha.value is None:
        raise RuntimeError(f"CLARABEL found no solution of the QP, status {problem.status!r}. Try another seed.")
    solution: np.ndarray = np.ascontiguousarray(alpha.value) * scale
    return solution


def polish(start: np.ndarray, target: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    """Return the exact optimum by Newton's method on the dual, started from the positive entries of ``start``.

    Arguments and result as in :func:`solve_transport_qp`; sums are positive, and ``start`` is near the optimum.

    The optimum is ``max(0, target + u_t + v_k)``. On given positive entries the margins are linear equations for the
    multipliers u and v, and the positive entries are found again in the solution.
    """
    if len(cols) > len(rows):
        return polish(start.T, target.T, cols, rows).T
    positive: np.ndarray = start > 1e-6 * start.mean()
    for _ in range(_MAX_ITERATIONS):
        kept = np.where(positive, target, 0.0)
        row_gaps = rows - kept.sum(axis=1)
        col_gaps = cols - kept.sum(axis=0)
        # u follows from v, row by row. That leaves one equation for each column, and there are fewer columns than rows.
        num_positive = np.maximum(positive.sum(axis=1), 1)
        share: np.ndarray = positive / num_positive[:, None]
        matrix = np.diag(positive.sum(axis=0)) - positive.T @ share
        # The matrix is singular by nature: a constant can be moved from u to v.
        v, *_ = np.linalg.lstsq(matrix, col_gaps - share.T @ row_gaps, rcond=1e-12)
        u = (row_gaps - positive @ v) / num_positive
        shifted = target + u[:, None] + v
        optimal: np.ndarray = np.maximum(shifted, 0.0)
        row_error = np.max(np.abs(optimal.sum(axis=1) - rows))
        col_error = np.max(np.abs(optimal.sum(axis=0) - cols))
        if max(row_error, col_error) <= _tolerance(rows):
            return optimal
        positive = shifted > 0
    # Full steps can go round in circles.
    return _descend(u, v, target, rows, cols)


def _descend(u: np.ndarray, v: np.ndarray, target: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    """Return the exact optimum by Newton steps that are shortened until they lessen the dual, which is convex.

    The dual is ``sum(max(0, target + u_t + v_k)**2) / 2 - u @ rows - v @ cols``; its gradient: margins less sums.
    """
    point = np.concatenate([u, v])
    sums = np.concatenate([rows, cols])

    def shift(point: np.ndarray) -> np.ndarray:
        u, v = np.split(point, [len(rows)])
        shifted: np.ndarray = target + u[:, None] + v
        return shifted

    def dual(point: np.ndarray) -> float:
        optimal = np.maximum(shift(point), 0.0)
        return float((optimal**2).sum() / 2 - point @ sums)

    for _ in range(_MAX_ITERATIONS):
        shifted = shift(point)
        optimal: np.ndarray = np.maximum(shifted, 0.0)
        gradient = np.concatenate([optimal.sum(axis=1), optimal.sum(axis=0)]) - sums
        error = np.max(np.abs(gradient))
        if error <= _tolerance(rows):
            return optimal
        positive = shifted > 0
        curvature = np.block(
            [
                [np.diag(positive.sum(axis=1)), positive],
                [positive.T, np.diag(positive.sum(axis=0))],
            ]
        )
        # It is singular where a constant can be moved from u to v, or a row has no positive entry.
        step = -np.linalg.solve(curvature + 1e-10 * np.eye(len(point)), gradient)
        now = dual(point)
        slope = float(step @ gradient)
        # The step is halved until the dual falls by enough (Armijo).
        length = 1.0
        while length > 1e-12 and dual(point + length * step) > now + 1e-4 * length * slope:
            length /= 2
        point = point + length * step
    raise RuntimeError(
        f"The QP's margins are off by {error:.1e} after {_MAX_ITERATIONS} Newton steps. Try another seed, or a larger "
        "`class_alpha`."
    )


def _tolerance(sums: np.ndarray) -> float:
    return max(1e-9, 1e-12 * float(sums.sum()))


# ---- with classes and features ----


def solve_grouped_qp(
    target: np.ndarray, groups: np.ndarray, row_sums: np.ndarray, col_sums: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return a non-negative matrix of given margins whose sums over groups of columns are nearest to a target.

    Minimises eq. (51), ``sum((alpha @ A - target)**2)``, where ``A[u, g]`` is 1 if column u is in group g and 0
    otherwise, subject to ``alpha.sum(1) == row_sums``, ``alpha.sum(0) == col_sums`` and ``alpha >= 0``. The sums over
    groups are unique at the optimum, ``alpha`` is not. CLARABEL, through cvxpy, solves it to about 1e-8 of the loss;
    the result is then shifted to meet the margins exactly.

    Equations are numbered as in ``docs/references.md``.

    Args:
        target: The wanted sums, shape (T, G).
        groups: The groups of each column, whole numbers from 0 to G-1, different within a row, shape (U, F).
        row_sums: Sums over the columns, positive, shape (T,).
        col_sums: Sums over the rows, positive, shape (U,), with the same total.

    Returns:
        ``(alpha, bound)``: a solution, float64, shape (T, U), whose margins are right to 1e-9 (1e-12 of the total, if
        that is more); and a lower bound of all feasible losses, see :func:`lower_bound`.

    Raises:
        RuntimeError: If the solver fails.
    """
    rows = row_sums.astype(np.float64)
    cols = col_sums.astype(np.float64)
    if min(len(rows), len(cols)) == 1:
        # The margins leave no choice.
        alpha = np.outer(rows, cols) / rows.sum()
    else:
        start = approximate(target, rows, cols, groups)
        start = np.maximum(start, 0.0)
        alpha = polish(start, start, rows, cols)
    return alpha, lower_bound(alpha, target, groups, rows, cols)


class Transport(NamedTuple):
    """The solution of a transportation problem: its entries, shape (E,), and the prices of its columns, shape (K,)."""

    entries: np.ndarray
    col_prices: np.ndarray


def solve_transport(cost: np.ndarray, places: Pair, sums: Pair, most: float | None = None) -> Transport:
    """Return the solution of a transportation problem: the cheapest entries of a matrix of given margins.

    Args:
        cost: Cost of each entry, shape (E,).
        places: Row and column of each entry, each of shape (E,).
        sums: Sums of the rows, shape (T,), and of the columns, shape (K,).
        most: The largest value of an entry; none if ``None``. The smallest is 0.
    """
    from scipy import optimize, sparse

    num_entries = len(cost)
    ones = np.ones(num_entries)
    entries = np.arange(num_entries)
    rows, cols = places
    row_sums, col_sums = sums
    of_rows = sparse.csr_array((ones, (rows, entries)), shape=(len(row_sums), num_entries))
    of_cols = sparse.csr_array((ones, (cols, entries)), shape=(len(col_sums), num_entries))
    found = optimize.linprog(
        cost,
        A_eq=sparse.vstack([of_rows, of_cols]),
        b_eq=np.concatenate(sums),
        bounds=(0, most),
        method="highs-ds",
        # Presolve finds nothing to simplify in a transportation problem and would take most of the time.
        options={"presolve": False},
    )
    return Transport(found.x, found.eqlin.marginals[len(row_sums) :])


def lower_bound(alpha: np.ndarray, target: np.ndarray, groups: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> float:
    """Return a lower bound of the loss of all matrices of the given margins.

    The loss is convex, so it is nowhere below its tangent plane at ``alpha``; the plane's minimum over the feasible
    matrices is a transportation problem. Any prices of rows and columns that nowhere exceed the slope together bound
    that minimum. So the bound holds although the problem is solved to a tolerance only: the prices that the solver
    finds are corrected to that effect, and the rounding errors are subtracted. The bound is the loss of ``alpha``, to
    rounding, if that is optimal. Arguments as in :func:`solve_grouped_qp`.
    """
    residual = group_sums(alpha, groups, target.shape[1]) - target
    slope: np.ndarray = 2.0 * residual[:, groups].sum(axis=2)
    scale = max(float(np.max(np.abs(slope))), 1.0)
    places = np.divmod(np.arange(alpha.size), len(cols))
    plane = solve_transport(slope.ravel() / scale, places, (rows, cols))
    col_prices = plane.col_prices * scale
    row_prices = (slope - col_prices).min(axis=1)
    col_prices = (slope - row_prices[:, None]).min(axis=0)
    terms = np.concatenate(
        [
            (residual**2).ravel(),
            (-slope * alpha).ravel(),
            rows * row_prices,
            cols * col_prices,
        ]
    )
    # Each term, price and slope is right to a few units in the last place. `fsum` adds the terms without an error.
    largest = np.max(np.abs(slope)) + np.max(np.abs(row_prices)) + np.max(np.abs(col_prices))
    rounding = 4 * np.finfo(np.float64).eps * (np.sum(np.abs(terms)) + rows.sum() * largest)
    return max(0.0, math.fsum(terms) - float(rounding))
