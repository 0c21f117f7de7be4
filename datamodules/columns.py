"""Columns of a table as classes and numbers without gaps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fl_lightning.arguments import got, is_sequence


def check_names(argument: str, names: Sequence[str]) -> list[str]:
    """Return names as a list; raise ``ValueError`` unless they are a sequence of texts; a single text is an error."""
    if isinstance(names, str):
        raise ValueError(f"`{argument}` must be a sequence of names, got {names!r}. Give [{names!r}].")
    if not is_sequence(names) or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"`{argument}` must be a sequence of names, got {got(names)}.")
    return list(names)


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
        kind = "texts" if values.dtype.kind == "U" else values.dtype
        raise ValueError(
            f"{name} must hold numbers for `regression=True`, got {kind}. For classes give `regression=False`."
        )
    with np.errstate(over="ignore"):  # numbers that are too large become infinite
        targets: np.ndarray = values.astype(np.float32)
    wrong = ~np.isfinite(targets)
    if wrong.any():
        raise ValueError(
            f"{name} holds numbers that are infinite or too large for float32, such as {values[wrong][0]} in row "
            f"{int(wrong.argmax())}, counted from 0. Rescale it, or leave such rows out."
        )
    return targets
