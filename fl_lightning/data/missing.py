"""Values that are missing (NaN) or infinite: found and named, or filled with means."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fl_lightning.data.federated_split import GLOBAL, FederatedSplit

Imputation = Literal["local", "global"]

_CHUNK = 1 << 22  # numbers looked at at a time


def fill_missing(x: Tensor, how: Imputation, split: FederatedSplit) -> Tensor:
    """Return a copy in which NaN is replaced by the mean of the feature.

    ``"global"`` takes the mean over the training samples of all clients. ``"local"`` takes the mean over each client's
    training samples, for its evaluation samples too; a client without training samples takes the mean of its evaluation
    set. A client that never observed a feature takes the global mean. A feature that no client observed becomes 0.
    Means are over finite values.

    Args:
        x: All samples, floating point, shape (N, features).
        how: ``"global"`` or ``"local"``.
        split: The training and evaluation samples of each client.

    Raises:
        ValueError: If ``x`` is not floating point or not 2-D.
    """
    if not x.is_floating_point() or x.dim() != 2:
        raise ValueError(
            f"`impute={how!r}` needs floating-point inputs of shape (N, features), got {x.dtype} of shape "
            f"{tuple(x.shape)}. Fill in missing values in `load()`, or leave `impute` out."
        )
    # numpy has no bfloat16
    filled = x.detach().cpu().to(torch.float32 if x.dtype == torch.bfloat16 else x.dtype, copy=True)
    values = filled.numpy()
    overall = _means(values[np.concatenate(list(split.train.values()))], np.zeros(x.shape[1]))
    if how == "local":
        own = {client: _means(values[rows], overall) for client, rows in split.train.items()}
        for part in (split.train, split.val, split.test):
            for client, rows in part.items():
                means = own[client] if client in own else _means(values[rows], overall)
                values[rows] = np.where(np.isnan(values[rows]), means, values[rows])
    np.copyto(values, overall, casting="same_kind", where=np.isnan(values))
    return filled.to(x)


def check_finite(x: Tensor, split: FederatedSplit, features: slice, asked: str) -> None:
    """Raise ``ValueError`` if an input that will be standardised is NaN or infinite.

    Args:
        x: Inputs of all samples, floating point, shape (N, features, ...).
        split: The training and evaluation samples of each client; samples of no set are not looked at.
        features: The features that are looked at.
        asked: The argument that needs finite inputs, as ``standardize='global'``.
    """
    x = x[:, features]
    chunks = x.split(max(1, _CHUNK // max(1, x[0].numel())))
    if all(bool(torch.isfinite(chunk).all()) for chunk in chunks):
        return
    # channels of several values count as one column
    wrong = [(~torch.isfinite(chunk)).reshape(*chunk.shape[:2], -1).sum(2) for chunk in chunks]
    counts = torch.cat(wrong).cpu().numpy()
    used = np.zeros(len(x), dtype=bool)
    for part in (split.train, split.val, split.test):
        for rows in part.values():
            used[rows] = True
    counts[~used] = 0
    if not counts.any():
        return
    column = int(counts.sum(axis=0).argmax())
    holder, number = _worst_holder(counts[:, column], split)
    values = "NaN or infinite value" if number == 1 else "NaN or infinite values"
    others = int(counts.sum()) - number
    more = f", and there are {others} elsewhere" if others else ""
    raise ValueError(
        f"`{asked}` needs finite inputs, but {holder} has {number} {values} in column {column + (features.start or 0)}"
        f"{more}. A single one would spoil the whole column. Clean the data first, or fill NaN with means by "
        "`impute='global'` or `impute='local'`."
    )


def _worst_holder(counts: np.ndarray, split: FederatedSplit) -> tuple[str, int]:
    """Return the client, or the set of no client, with the most such values of a column, and their number."""
    found: dict[str, int] = {}
    for stage, part in (("training", split.train), ("validation", split.val), ("test", split.test)):
        for client, rows in part.items():
            name = f"the {stage} set" if client == GLOBAL else f"client {client}"
            found[name] = found.get(name, 0) + int(counts[rows].sum())
    return max(found.items(), key=lambda item: item[1])


def _means(values: np.ndarray, default: np.ndarray) -> np.ndarray:
    """Return each feature's mean over its finite values, in float64; ``default`` where it has none."""
    finite = np.isfinite(values)
    observed = finite.sum(axis=0)
    totals = np.where(finite, values, 0).sum(axis=0, dtype=np.float64)
    means: np.ndarray = np.where(observed == 0, default, totals / np.maximum(observed, 1))
    return means
