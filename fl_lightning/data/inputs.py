"""The preparation of all samples' inputs at set-up: missing values, noise, standardisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fl_lightning.data.federated_split import GLOBAL, FederatedSplit
from fl_lightning.partitioners.feature_noise import add_feature_noise
from fl_lightning.vectors import is_finite

Standardization = Literal["global", "local"]
Imputation = Literal["local", "global"]

#: Numbers held in float64 at a time.
_CHUNK = 1 << 22


# ---- missing values ----


def fill_missing(x: Tensor, how: Imputation, split: FederatedSplit) -> tuple[Tensor, dict[int, np.ndarray]]:
    """Return a copy in which NaN is replaced by the mean of the feature, and these means by training client.

    ``"global"`` takes the mean over the training samples of all clients. ``"local"`` takes the mean over each client's
    training samples, for its evaluation samples too; a client without training samples takes the mean of its evaluation
    set. A client that never observed a feature takes the global mean. A feature that no client observed becomes 0.
    Means are over finite values.

    Args:
        x: All samples, floating point, shape (N, features).
        how: ``"global"`` or ``"local"``.
        split: The training and evaluation samples of each client.

    Returns:
        The copy, and the means, each of shape (features,); with ``"global"`` those of ``GLOBAL``.

    Raises:
        ValueError: If ``x`` is not floating point or not 2-D.
    """
    if not x.is_floating_point() or x.dim() != 2:
        raise ValueError(
            f"`impute={how!r}` needs floating-point inputs of shape (N, features), got {x.dtype} of shape "
            f"{tuple(x.shape)}. Fill in missing values in `load()`, or leave `impute` out."
        )
    # numpy has no bfloat16.
    kind = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    filled = x.detach().cpu().to(kind, copy=True)
    values = filled.numpy()
    training_rows = np.concatenate(list(split.train.values()))
    overall = _means(values[training_rows], default=np.zeros(x.shape[1]))
    means_of_clients = {GLOBAL: overall}
    if how == "local":
        means_of_clients = {client: _means(values[rows], default=overall) for client, rows in split.train.items()}
        for part in (split.train, split.val, split.test):
            for client, rows in part.items():
                of_client = values[rows]
                means = means_of_clients.get(client)
                if means is None:
                    means = _means(of_client, default=overall)
                values[rows] = np.where(np.isnan(of_client), means, of_client)
    np.copyto(values, overall, where=np.isnan(values))
    return filled.to(x), means_of_clients


def _means(values: np.ndarray, default: np.ndarray) -> np.ndarray:
    """Return each feature's mean over its finite values, in float64; ``default`` where it has none."""
    finite = np.isfinite(values)
    observed = finite.sum(axis=0)
    totals = np.where(finite, values, 0).sum(axis=0, dtype=np.float64)
    means: np.ndarray = np.divide(totals, observed, out=default.copy(), where=observed > 0)
    return means


# ---- noise ----


def with_noise(x: Tensor, level: float, split: FederatedSplit, seed: int, features: slice) -> Tensor:
    """Return a copy to whose features :func:`~fl_lightning.partitioners.add_feature_noise` has added noise.

    Args:
        x: Inputs of all samples, shape (N, features, ...).
        level: Standard deviation of the last client's noise.
        split: Who holds which samples.
        seed: Seed of the noise.
        features: The features that are changed; the others stay as they are.

    Raises:
        ValueError: If ``x`` is not floating point.
    """
    if not x.is_floating_point():
        raise ValueError(f"`feature_noise={level}` needs floating-point inputs, got {x.dtype}.")
    noisy = x.clone()
    numeric = (slice(None), features)[: x.dim()]
    noisy[numeric] = add_feature_noise(x[numeric], split.partition, level, seed)
    return noisy


# ---- standardisation ----


def standardized(
    x: Tensor, how: Standardization, split: FederatedSplit, features: slice = slice(None)
) -> tuple[Tensor, dict[int, tuple[Tensor, Tensor]]]:
    """Return standardised samples, and the statistics by training client.

    ``"global"`` uses the statistics of the training samples of all clients together. ``"local"`` uses each client's
    own: those of its training samples, for its evaluation samples too. A client without training samples, and a set of
    no client (-1), uses those of the evaluation set itself.

    Args:
        x: All samples, floating point, shape (N, features, ...).
        how: ``"global"`` or ``"local"``.
        split: The training and evaluation samples of each client.
        features: The features that are standardised; the others stay as they are.

    Returns:
        The samples, and mean and standard deviation as of :func:`fit_statistics`; with ``"global"`` those of
        ``GLOBAL``.

    Raises:
        ValueError: If ``x`` is not floating point, has no features, or holds a NaN or infinite value.
    """
    if not x.is_floating_point() or x.dim() < 2:
        raise ValueError(
            f"`standardize={how!r}` needs floating-point inputs of shape (N, features, ...), got {x.dtype} of shape "
            f"{tuple(x.shape)}. Convert them in `load()`, or leave `standardize` out."
        )
    if not is_finite(x[:, features]):
        used = np.concatenate([*split.train.values(), *split.val.values(), *split.test.values()])
        is_hole = ~x[torch.from_numpy(used)][:, features].isfinite()
        # A channel of several values is one column.
        counts = is_hole.transpose(0, 1).flatten(1).sum(1)
        if counts.any():
            column = int(counts.argmax()) + (features.start or 0)
            raise ValueError(
                f"`standardize={how!r}` needs finite inputs, got {int(counts.max())} NaN or infinite values in column "
                f"{column}. A single one would spoil the whole column. Clean the data first, or fill NaN with means by "
                "`impute='global'` or `impute='local'`."
            )
    out = x.clone()
    if how == "global":
        training_rows = np.concatenate(list(split.train.values()))
        rows = torch.from_numpy(training_rows).to(x.device)
        mean, std = fit_statistics(x.index_select(0, rows)[:, features])
        out[:, features] = apply_statistics(x[:, features], mean, std)
        return out, {GLOBAL: (mean, std)}
    fitted: dict[int, tuple[Tensor, Tensor]] = {}
    for part in (split.train, split.val, split.test):
        for client, indices in part.items():
            if len(indices) == 0:
                continue
            rows = torch.from_numpy(indices).to(x.device)
            values = x[:, features].index_select(0, rows)
            mean, std = fitted[client] if client in fitted else fit_statistics(values)
            if part is split.train:
                fitted[client] = mean, std
            out[:, features][rows] = apply_statistics(values, mean, std)
    return out, fitted


def fit_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and population standard deviation of each feature, accumulated in float64.

    scikit-learn's ``StandardScaler`` would copy all inputs to float64, and knows no channels.

    Args:
        x: Samples, shape (n, features), or (n, channels, ...), where a channel counts as one feature.

    Returns:
        ``(mean, std)``, float64, each of shape (features,). The standard deviation of a constant feature is given as 1.
        A feature is also constant if its values differ only by rounding.
    """
    axes = [axis for axis in range(x.dim()) if axis != 1]
    numbers_of_sample = max(1, x[0].numel())
    chunks: Sequence[Tensor] = x.split(max(1, _CHUNK // numbers_of_sample))
    count = len(x) * math.prod(x.shape[2:])
    sums = [chunk.double().sum(axes) for chunk in chunks]
    mean = torch.stack(sums).sum(0) / count
    squares = []
    for chunk in chunks:
        deviations = chunk.double() - along(mean, x)
        squares.append(deviations.square_().sum(axes))
    std = (torch.stack(squares).sum(0) / count).sqrt()
    is_constant = (std == 0) | _is_constant(chunks, axes)
    return mean, torch.where(is_constant, 1.0, std)


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
    # Sums in another order differ by some units in the last place. Narrow types are allowed one: they hold real data at
    # the limit of their precision, such as counts of millions in float32.
    units = 4 if kind == torch.float64 else 1
    return high - low <= units * torch.finfo(kind).eps * low.abs()


def apply_statistics(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return ``(x - mean) / std`` in the precision of ``x``; shapes as in :func:`fit_statistics`."""
    deviations = x - along(mean, x).to(x.dtype)
    return deviations.div_(along(std, x).to(x.dtype))


def along(statistic: Tensor, x: Tensor) -> Tensor:
    """Return a number for each feature in a shape that broadcasts over samples, shape (features, 1, ...)."""
    axes_after_features = [1] * (x.dim() - 2)
    return statistic.view(-1, *axes_after_features)
