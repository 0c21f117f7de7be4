"""The quadratic program behind the QP partition: the matrix of given margins that is nearest to a target."""

from __future__ import annotations

from typing import Any

import numpy as np

_MAX_ITERATIONS = 100


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
    target, rows, cols = (np.asarray(array, dtype=np.float64) for array in (target, row_sums, col_sums))
    optimal = np.zeros_like(target)
    # a sum of 0 leaves nothing to choose in its row or column
    free = np.ix_(rows > 0, cols > 0)
    if rows.sum() > 0:
        optimal[free] = _solve(target[free], rows[rows > 0], cols[cols > 0])
    return optimal


def _solve(target: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    row_gap, col_gap = rows - target.sum(axis=1), cols - target.sum(axis=0)
    num_rows, num_cols = target.shape
    projection: np.ndarray = target + row_gap[:, None] / num_cols + col_gap / num_rows - row_gap.sum() / target.size
    if projection.min() >= 0:
        return projection
    return polish(approximate(target, rows, cols), target, rows, cols)


def approximate(target: np.ndarray, rows: np.ndarray, cols: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Return the optimum to about 1e-7 of the mean entry; with groups that of ``solve_grouped_qp``.

    Raises:
        RuntimeError: If the solver fails.
    """
    import cvxpy as cp
    from scipy import sparse

    shape = len(rows), len(cols)
    scale = rows.sum() / (shape[0] * shape[1])
    alpha = cp.Variable(shape, nonneg=True)
    sums: Any = alpha
    if groups is not None:
        entries = np.repeat(np.arange(len(cols)), groups.shape[1]), groups.ravel()
        sums = alpha @ sparse.csr_array((np.ones(groups.size), entries), shape=(len(cols), target.shape[1]))
    # the last column's sum follows from the others
    margins = [alpha.sum(axis=1) == rows / scale, alpha.sum(axis=0)[:-1] == cols[:-1] / scale]
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
    multipliers u and v, and the solution tells the positive entries anew.
    """
    if len(cols) > len(rows):
        return polish(start.T, target.T, cols, rows).T
    positive = start > 1e-6 * start.mean()
    for _ in range(_MAX_ITERATIONS):
        kept = np.where(positive, target, 0.0)
        row_gaps, col_gaps = rows - kept.sum(axis=1), cols - kept.sum(axis=0)
        # u follows from v, row by row, so that the equations to be solved are as many as columns, the fewer
        share = positive / np.maximum(positive.sum(axis=1, keepdims=True), 1)
        matrix = np.diag(positive.sum(axis=0)) - positive.T @ share
        # singular by nature: a constant can be moved from u to v
        v = np.linalg.lstsq(matrix, col_gaps - share.T @ row_gaps, rcond=1e-12)[0]
        u = (row_gaps - positive @ v) / np.maximum(positive.sum(axis=1), 1)
        shifted = target + u[:, None] + v
        optimal: np.ndarray = np.maximum(shifted, 0.0)
        error = max(np.abs(optimal.sum(axis=1) - rows).max(), np.abs(optimal.sum(axis=0) - cols).max())
        if error <= _tolerance(rows):
            return optimal
        positive = shifted > 0
    return _descend(u, v, target, rows, cols)  # full steps can go round in circles


def _descend(u: np.ndarray, v: np.ndarray, target: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    """Return the exact optimum by Newton steps that are shortened until they lessen the dual, which is convex.

    The dual is ``sum(max(0, target + u_t + v_k)**2) / 2 - u @ rows - v @ cols``; its gradient: margins less sums.
    """

    def dual(point: np.ndarray) -> float:
        shifted = target + point[: len(rows), None] + point[len(rows) :]
        return float((np.maximum(shifted, 0.0) ** 2).sum() / 2 - point @ sums)

    point, sums = np.concatenate([u, v]), np.concatenate([rows, cols])
    for _ in range(_MAX_ITERATIONS):
        shifted = target + point[: len(rows), None] + point[len(rows) :]
        optimal: np.ndarray = np.maximum(shifted, 0.0)
        gradient = np.concatenate([optimal.sum(axis=1), optimal.sum(axis=0)]) - sums
        error = np.abs(gradient).max()
        if error <= _tolerance(rows):
            return optimal
        positive = (shifted > 0).astype(np.float64)
        curvature = np.block(
            [[np.diag(positive.sum(axis=1)), positive], [positive.T, np.diag(positive.sum(axis=0))]],
        )
        # singular where a constant can be moved from u to v, or a row has no positive entry
        step = -np.linalg.solve(curvature + 1e-10 * np.eye(len(point)), gradient)
        now, slope = dual(point), float(step @ gradient)
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
