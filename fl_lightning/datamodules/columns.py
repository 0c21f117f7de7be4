"""Columns of a table as classes without gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from fl_lightning.data import PartitionFunction
from fl_lightning.words import short_repr

_REGRESSION = "For targets to regress on give `regression=True` (on the command line `--regression`)."


def check_there(needed: Iterable[str | None], present: Iterable[Any], of: object, kind: str = "column") -> None:
    """Raise ``ValueError`` for the first column, or split, that is needed and not there."""
    present = list(present)
    for name in needed:
        if name is not None and name not in present:
            names = ", ".join(str(each) for each in present)
            raise ValueError(f"{of} has no {kind} {name!r}; its {kind}s are {names}.")


def check_complete(missing: np.ndarray, column: str) -> None:
    """Raise ``ValueError`` if a column has no value in a row; ``missing`` tells of each row, shape (N,)."""
    if missing.any():
        raise ValueError(f"Column {column!r} has no value in row {missing.argmax()}, counted from 0. Drop such rows.")


def clients_of_column(
    column: str | None, partitioner: PartitionFunction | None, read: Callable[[str], np.ndarray]
) -> np.ndarray | None:
    """Return the client of each sample, shape (N,); ``None``, with a line that says so, if a partitioner makes clients.

    Args:
        column: The column of the clients, if there is one.
        partitioner: The partitioner, if there is one.
        read: Returns the values of a column.
    """
    if column is None:
        return None
    if partitioner is None:
        return read(column)
    rank_zero_info(
        f"{short_repr(partitioner)} makes the clients. The column {column!r}, which is `client`, is not used."
    )
    return None


def encode_classes(values: np.ndarray, name: str, otherwise: str = _REGRESSION) -> tuple[np.ndarray, list[str]]:
    """Number the distinct values in ascending order.

    Args:
        values: Whole numbers, strings or booleans, shape (N,).
        name: The name of the values in errors.
        otherwise: What to do if they are no classes.

    Returns:
        ``(labels, class_names)``: int64, shape (N,), and the values as strings.

    Raises:
        ValueError: If the values are numbers that are not whole.
    """
    if values.dtype.kind == "f":
        wrong = ~np.isfinite(values) | (values != np.rint(values))
        if wrong.any():
            raise ValueError(
                f"{name} holds numbers that are not whole, such as {values[wrong][0]}, so they are not classes. "
                f"{otherwise}"
            )
        values = values.astype(np.int64)
    distinct, labels = np.unique(values, return_inverse=True)
    return labels.astype(np.int64), [str(value) for value in distinct]


def numbers_to_predict(values: np.ndarray, name: str) -> np.ndarray:
    """Return the targets of a regression, float32.

    Args:
        values: The targets, shape (N, ...).
        name: The name of the values in errors.

    Raises:
        ValueError: If they are not numbers, or one is not finite in float32.
    """
    wrong = values
    if values.dtype.kind in "biuf":
        # Numbers that are too large for float32 become infinite.
        with np.errstate(over="ignore"):
            numbers = values.astype(np.float32)
        wrong = values[~np.isfinite(numbers)]
        if wrong.size == 0:
            return numbers
    raise ValueError(f"{name} must hold finite numbers, as `regression=True` needs, got {short_repr(wrong.flat[0])}.")
