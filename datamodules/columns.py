"""Columns of a table as classes and numbers without gaps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


def check_columns(needed: Iterable[str | None], present: Sequence[str], of: object) -> None:
    """Raise ``ValueError`` for the first column that is needed and not there."""
    missing = next((name for name in needed if name is not None and name not in present), None)
    if missing is not None:
        raise ValueError(f"{of} has no column {missing!r}; its columns are {', '.join(map(str, present))}.")


def encode_classes(values: np.ndarray, name: str) -> tuple[np.ndarray, list[str]]:
    """Number the distinct values in ascending order.

    Args:
        values: Whole numbers, texts or truth values, shape (N,).
        name: The name of the values in errors.

    Returns:
        ``(labels, class_names)``: int64, shape (N,), and the values as texts.

    Raises:
        ValueError: If the values are numbers that are not whole.
    """
    if values.dtype.kind == "f":
        wrong = ~np.isfinite(values) | (values != np.rint(values))
        if wrong.any():
            raise ValueError(
                f"{name} holds numbers that are not whole, such as {values[wrong][0]}, so they are not classes. For "
                "targets to regress on give `regression=True` (on the command line `--regression`)."
            )
        values = values.astype(np.int64)
    distinct, labels = np.unique(values, return_inverse=True)
    return labels.astype(np.int64), [str(value) for value in distinct]


def regression_targets(values: np.ndarray, name: str) -> np.ndarray:
    """Return numbers to predict, float32, shape (N,).

    Args:
        values: Numbers, shape (N,).
        name: The name of the values in errors.

    Raises:
        ValueError: If they are no numbers, or one is infinite or too large for float32.
    """
    if values.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold numbers for `regression=True`, got {values.dtype}.")
    with np.errstate(over="ignore"):  # numbers that are too large become infinite
        targets: np.ndarray = values.astype(np.float32)
    wrong = ~np.isfinite(targets)
    if wrong.any():
        raise ValueError(
            f"{name} has a number that is infinite or too large for float32 in row {wrong.argmax()}, counted from 0. "
            "Rescale it, or leave such rows out."
        )
    return targets
