"""Columns of a table as classes and numbers without gaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from fl_lightning.data import FederatedSplit

Imputation = Literal["local", "global"]


def check_names(argument: str, names: Sequence[str]) -> list[str]:
    """Return names as a list; raise ``ValueError`` unless they are a sequence of texts; a single text is an error."""
    if isinstance(names, str):
        raise ValueError(f"`{argument}` must be a sequence of names, got {names!r}. Give [{names!r}].")
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"`{argument}` must be a sequence of names, got {names!r}.")
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
                f"{name} holds numbers that are not whole, such as {values[wrong][0]}; they are no classes. For "
                "targets to regress on give `regression=True`."
            )
        values = values.astype(np.int64)
    distinct, labels = np.unique(values, return_inverse=True)
    return labels.astype(np.int64), [str(value) for value in distinct]


def fill_missing(x: Tensor, how: Imputation, split: FederatedSplit) -> None:
    """Replace NaN by the mean of the feature, in place.

    ``"global"`` takes the mean of the training samples of all clients together. ``"local"`` takes each client's own:
    that of its training samples, for its evaluation samples too; a client without training samples takes that of the
    evaluation set itself. A client that never observed a feature takes the global mean, and 0 stands for a feature that
    nobody observed.

    Args:
        x: All samples, floating point on the CPU, shape (N, features).
        how: ``"global"`` or ``"local"``.
        split: The training and evaluation samples of each client.
    """
    values = x.numpy()
    overall = _means(values[np.concatenate(list(split.train.values()))], np.zeros(x.shape[1]))
    if how == "local":
        own = {client: _means(values[rows], overall) for client, rows in split.train.items()}
        for part in (split.train, split.val, split.test):
            for client, rows in part.items():
                means = own[client] if client in own else _means(values[rows], overall)
                values[rows] = np.where(np.isnan(values[rows]), means, values[rows])
    np.copyto(values, overall, casting="same_kind", where=np.isnan(values))


def _means(values: np.ndarray, default: np.ndarray) -> np.ndarray:
    """Return each feature's mean over the samples that have it, in float64; ``default`` where none has."""
    observed = (~np.isnan(values)).sum(axis=0)
    means: np.ndarray = np.where(
        observed == 0, default, np.nansum(values, axis=0, dtype=np.float64) / np.maximum(observed, 1)
    )
    return means
