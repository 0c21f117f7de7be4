"""Standardisation of inputs to mean 0 and standard deviation 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        ``(mean, std)``, float64, each of shape (features,). The standard deviation of a constant feature is given as 1.
        A feature is also constant if its values differ only by rounding.

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
    return mean, torch.where((std == 0) | _is_constant(chunks, axes), 1.0, std)


def _is_constant(chunks: Sequence[Tensor], axes: list[int]) -> Tensor:
    """Return which features are constant up to rounding, bool, shape (features,).

    The range of the values tells, not their standard deviation: that of a constant such as 0.2 may be the rounding
    error of its mean, and dividing by that makes huge numbers of nothing.
    """
    low = torch.stack([chunk.amin(axes) for chunk in chunks]).amin(0).double()
    high = torch.stack([chunk.amax(axes) for chunk in chunks]).amax(0).double()
    kind = chunks[0].dtype
    if not kind.is_floating_point:
        return low == high
    # sums in another order differ by some units in the last place. Narrow types are left one: they hold real data at
    # the limit of their precision, such as counts of millions in float32
    units = 4 if kind == torch.float64 else 1
    return high - low <= units * torch.finfo(kind).eps * torch.maximum(low.abs(), high.abs())


def apply_statistics(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return ``(x - mean) / std`` in the precision of ``x``; shapes as in :func:`fit_statistics`."""
    return (x - _along(mean, x).to(x.dtype)).div_(_along(std, x).to(x.dtype))


def standardize(
    x: Tensor, how: Standardization, train: Parts, evaluation: Sequence[Parts], features: slice = slice(None)
) -> Tensor:
    """Return standardised samples.

    ``"global"`` uses the statistics of the training samples of all clients together. ``"local"`` uses each client's
    own: those of its training samples, for its evaluation samples too. A client without training samples, and a set of
    no client (-1), uses those of the evaluation set itself.

    Args:
        x: All samples, floating point, shape (N, features, ...).
        how: ``"global"`` or ``"local"``.
        train: Indices of the training samples, by client.
        evaluation: Indices of evaluation samples, by client, for each stage.
        features: The features that are standardised; the others stay as they are.

    Raises:
        ValueError: If ``x`` is not floating point, or has no features.
    """
    if not x.is_floating_point():
        raise ValueError(
            f"`standardize={how!r}` needs floating-point inputs, got {x.dtype}. Convert them in `load()`, or leave "
            "`standardize` out."
        )
    if x.dim() < 2:
        raise ValueError(
            f"`standardize={how!r}` needs inputs with features, of shape (N, features, ...), got 1-D ones."
        )
    out = x.clone()
    if how == "global":
        rows = torch.from_numpy(np.concatenate(list(train.values()))).to(x.device)
        statistics = fit_statistics(x.index_select(0, rows)[:, features])
        out[:, features] = apply_statistics(x[:, features], *statistics)
    else:
        _fill_local(out[:, features], x[:, features], train, evaluation)
    return out


def _fill_local(out: Tensor, x: Tensor, train: Parts, evaluation: Sequence[Parts]) -> None:
    fitted: dict[int, tuple[Tensor, Tensor]] = {}
    for part in (train, *evaluation):
        for client, indices in part.items():
            if len(indices) == 0:
                continue
            rows = torch.from_numpy(indices).to(x.device)
            values = x.index_select(0, rows)
            statistics = fitted[client] if client in fitted else fit_statistics(values)
            if part is train:
                fitted[client] = statistics
            out[rows] = apply_statistics(values, *statistics)


def _along(statistic: Tensor, x: Tensor) -> Tensor:
    return statistic.view(-1, *[1] * (x.dim() - 2))
