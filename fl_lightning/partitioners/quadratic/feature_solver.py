"""The quadratic program of the QP partition by classes and features, and a lower bound of its optimum."""

from __future__ import annotations

import math

import numpy as np

from fl_lightning.partitioners.quadratic.rectangle_moves import group_sums
from fl_lightning.partitioners.quadratic.solver import approximate, polish


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
    rows, cols = row_sums.astype(np.float64), col_sums.astype(np.float64)
    if min(len(rows), len(cols)) == 1:
        # the margins leave no choice
        alpha = np.outer(rows, cols) / rows.sum()
    else:
        start = np.maximum(approximate(target, rows, cols, groups), 0.0)
        alpha = polish(start, start, rows, cols)
    return alpha, lower_bound(alpha, target, groups, rows, cols)


def lower_bound(alpha: np.ndarray, target: np.ndarray, groups: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> float:
    """Return a lower bound of the loss of all matrices of the given margins.

    The loss is convex, so it is nowhere below its tangent plane at ``alpha``; the plane's minimum over the feasible
    matrices is a transportation problem. Any prices of rows and columns that nowhere exceed the slope together bound
    that minimum. So the bound holds although the problem is solved to a tolerance only: the prices that the solver
    finds are corrected to that effect, and the rounding errors are subtracted. The bound is the loss of ``alpha``, to
    rounding, if that is optimal. Arguments as in :func:`solve_grouped_qp`.
    """
    from scipy import optimize, sparse

    residual = group_sums(alpha, groups, target.shape[1]) - target
    slope = 2.0 * residual[:, groups].sum(axis=2)
    entries, ones = np.arange(alpha.size), np.ones(alpha.size)
    num_cols = len(cols)
    margins = sparse.vstack(
        [
            sparse.csr_array((ones, (entries // num_cols, entries))),
            sparse.csr_array((ones, (entries % num_cols, entries))),
        ]
    )
    # presolve finds nothing to simplify in a transportation problem and would take most of the time
    options = {"presolve": False}
    sums = np.concatenate([rows, cols])
    scale = max(float(np.abs(slope).max()), 1.0)
    plane = optimize.linprog(slope.ravel() / scale, A_eq=margins, b_eq=sums, method="highs-ds", options=options)
    if plane.fun is None:
        raise RuntimeError(f"The transportation problem of the bound was not solved: {plane.message} Try another seed.")
    col_prices = plane.eqlin.marginals[len(rows) :] * scale
    row_prices = (slope - col_prices).min(axis=1)
    col_prices = (slope - row_prices[:, None]).min(axis=0)
    terms = [(residual**2).ravel(), (-slope * alpha).ravel(), rows * row_prices, cols * col_prices]
    # each term, price and slope is right to a few units in the last place; the sum of all is exact
    largest = np.abs(slope).max() + np.abs(row_prices).max() + np.abs(col_prices).max()
    rounding = 4 * np.finfo(np.float64).eps * (sum(np.abs(part).sum() for part in terms) + rows.sum() * largest)
    return max(0.0, math.fsum(np.concatenate(terms)) - float(rounding))
