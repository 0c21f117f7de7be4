"""From fractional to whole samples (eq. (48))."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fl_lightning.partitioners.quadratic.solver import solve_transport

RoundingMethod = Literal["margins", "columns"]

#: Entries nearer to a whole number than this are that number.
_EXACT = 1e-7
_MAX_DRAWS = 1000


def round_margins(alpha: np.ndarray) -> np.ndarray:
    """Round down or up so that all row and column sums stay what they are.

    Of all such matrices the nearest to ``alpha``, in squares, is taken. Which entries go up is a transportation problem
    with 0/1 variables; its linear relaxation has whole vertices, and a simplex method returns a vertex.

    Args:
        alpha: Non-negative matrix with whole row and column sums (to 1e-6), shape (T, K).

    Returns:
        int64, shape (T, K).
    """
    row_sums = _nearest(alpha.sum(axis=1))
    col_sums = _nearest(alpha.sum(axis=0))
    counts: np.ndarray = np.floor(alpha + _EXACT).astype(np.int64)
    fraction = alpha - counts
    rows, cols = np.nonzero(fraction > _EXACT)
    if len(rows) == 0:
        return counts
    # Rounding up costs (1 - f)^2, rounding down f^2; this is the difference.
    cost = 1.0 - 2.0 * fraction[rows, cols]
    missing_in_rows = row_sums - counts.sum(axis=1)
    missing_in_cols = col_sums - counts.sum(axis=0)
    goes_up = solve_transport(cost, (rows, cols), (missing_in_rows, missing_in_cols), most=1.0).entries
    counts[rows, cols] += _nearest(goes_up)
    return counts


def round_columns(alpha: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Round to the nearest, then add or take single samples at random rows until the column sums are right.

    The rule of the original code of RADFed: column sums are kept, row sums may change by a few samples.

    Args:
        alpha: Non-negative matrix with whole column sums (to 1e-6), shape (T, K).
        rng: Generator of the rows.

    Returns:
        int64, shape (T, K).

    Raises:
        ValueError: If after 1000 draws an entry is negative or a row is empty.
    """
    nearest = _nearest(alpha)
    col_sums = _nearest(alpha.sum(axis=0))
    missing = col_sums - nearest.sum(axis=0)
    for _ in range(_MAX_DRAWS):
        counts = nearest.copy()
        for col, gap in enumerate(missing):
            rows = rng.integers(len(counts), size=abs(gap))
            np.add.at(counts[:, col], rows, np.sign(gap))
        if counts.min() >= 0 and np.min(counts.sum(axis=1)) > 0:
            return counts
    raise ValueError(
        f"In {_MAX_DRAWS} draws `rounding='columns'` always left a client without samples or with a negative number of "
        "them. Use `rounding='margins'`, fewer clients or more samples."
    )


def _nearest(values: np.ndarray) -> np.ndarray:
    """Return the nearest whole numbers, as int64."""
    whole: np.ndarray = np.rint(values).astype(np.int64)
    return whole
