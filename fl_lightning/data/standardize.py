"""Standardisation of inputs to mean 0 and standard deviation 1 (SPEC 3.1, R-9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Parts = Mapping[int, np.ndarray]
Standardization = Literal["global", "local"]

_CHUNK = 1 << 22  # numbers held in float64 at a time


def fit_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and population standard deviation of each feature, accumulated in float64.

    Args:
        x: Samples, shape (n, features), or (n, channels, ...), where a channel counts as one feature.

    Returns:
        ``(mean, std)``, float64, each of shape (features,); a standard deviation of 0 is given as 1.

    Raises:
        ValueError: If ``x`` has fewer than two dimensions or no samples.
    """
    if x.dim() < 2 or len(x) == 0:
        raise ValueError(
            f"`x` must hold samples with features, of shape (n, features, ...), n > 0; got {tuple(x.shape)}."
        )
    axes = [axis for axis in range(x.dim()) if axis != 1]
    chunks = x.split(max(1, _CHUNK // max(1, x[0].numel())))
    count = x.numel() // x.shape[1]
    total = torch.stack([chunk.double().sum(axes) for chunk in chunks])
    mean = total.sum(0) / count
    squares = torch.stack([(chunk.double() - _along(mean, x)).square_().sum(axes) for chunk in chunks])
    std = (squares.sum(0) / count).sqrt()
    return mean, torch.where(std == 0, 1.0, std)


def apply_statistics(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return ``(x - mean) / std`` in the precision of ``x``; shapes as in :func:`fit_statistics`."""
    return (x - _along(mean, x).to(x.dtype)).div_(_along(std, x).to(x.dtype))


def standardize_global(x: Tensor, train: Parts, features: slice = slice(None)) -> Tensor:
    """Return ``x`` standardised by the statistics of the training samples of all clients together.

    Args:
        x: All samples, shape (N, features, ...).
        train: Indices of the training samples, by client.
        features: The features that are standardised; the others stay as they are.
    """
    rows = torch.from_numpy(np.concatenate(list(train.values())))
    statistics = fit_statistics(x.index_select(0, rows)[:, features])
    out = x.clone()
    out[:, features] = apply_statistics(x[:, features], *statistics)
    return out


def standardize_local(x: Tensor, train: Parts, evaluation: list[Parts], features: slice = slice(None)) -> Tensor:
    """Return ``x`` with each client standardised by its own statistics.

    A client that has training samples is standardised by those, its evaluation samples too; any other client, or
    evaluation set of no client (-1), by the set itself.

    Args:
        x: All samples, shape (N, features, ...).
        train: Indices of the training samples, by client.
        evaluation: Indices of evaluation samples, by client, for each stage.
        features: The features that are standardised; the others stay as they are.
    """
    out = x.clone()
    fitted: dict[int, tuple[Tensor, Tensor]] = {}
    for part in (train, *evaluation):
        for client, indices in part.items():
            if len(indices) == 0:
                continue
            rows = torch.from_numpy(indices)
            values = x.index_select(0, rows)[:, features]
            statistics = fitted[client] if client in fitted else fit_statistics(values)
            if part is train:
                fitted[client] = statistics
            out[rows, features] = apply_statistics(values, *statistics)
    return out


def _along(statistic: Tensor, x: Tensor) -> Tensor:
    return statistic.view(-1, *[1] * (x.dim() - 2))
