"""What was done to the inputs of samples at set-up, for inputs that come later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fl_lightning.data.federated_split import GLOBAL, FederatedSplit
from fl_lightning.data.inputs import (
    Imputation,
    Standardization,
    along,
    apply_statistics,
    fill_missing,
    standardized,
    with_noise,
)
from fl_lightning.data.samples import rows_of
from fl_lightning.data.source import Source


class Preprocessing(nn.Module):
    """Fills missing values and standardises, as a data module has done with the samples of its clients.

    It is a module without parameters, so it can stand before a trained module in a file for others::

        deployed = nn.Sequential(data.preprocessing(), module)

    A missing value, NaN, becomes the feature's fill. Then each feature becomes ``(x - mean) / std``. A feature that was
    not filled has the fill NaN; one that was not standardised has the mean 0 and the deviation 1.

    Args:
        fill: Fills, shape (features,).
        mean: Means, shape (features,).
        std: Standard deviations, shape (features,).

    Shape:
        Inputs (n, features), or (n, channels, ...), where a channel counts as one feature; outputs the same.

    Example:
        >>> import torch
        >>> age = Preprocessing(fill=torch.tensor([40.0]), mean=torch.tensor([40.0]), std=torch.tensor([10.0]))
        >>> age(torch.tensor([[60.0], [float("nan")]]))
        tensor([[2.],
                [0.]])
    """

    fill: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, fill: Tensor, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("fill", fill)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        """Return inputs as the module was trained with."""
        filled = torch.where(x.isnan(), along(self.fill, x).to(x.dtype), x)
        return apply_statistics(filled, self.mean, self.std)


def prepared(
    source: Source,
    split: FederatedSplit,
    *,
    impute: Imputation | None,
    feature_noise: float,
    seed: int,
    standardize: Standardization | None,
    features: slice,
) -> tuple[Source, dict[int, dict[str, Tensor]]]:
    """Fill up the inputs of samples, add noise and standardise them, as far as each is asked for, in this order.

    Args:
        source: All samples.
        split: The samples of each client.
        impute: Whose means take the place of missing values.
        feature_noise: Standard deviation of the noise on the last client's inputs.
        seed: The seed of the noise.
        standardize: Whose means and deviations standardise.
        features: The features that get noise and are standardised.

    Returns:
        The source with its new inputs, and what filled and standardised them, as for :func:`choose`; nothing of it
        where neither was asked for.
    """
    if not feature_noise and standardize is None and impute is None:
        return source, {}
    x, *others = rows_of(source)
    fills: dict[int, np.ndarray] = {}
    statistics: dict[int, tuple[Tensor, Tensor]] = {}
    if impute is not None:
        x, fills = fill_missing(x, impute, split)
    if feature_noise:
        x = with_noise(x, feature_noise, split, seed, features)
    if standardize is not None:
        x, statistics = standardized(x, standardize, split, features)
    known: dict[int, dict[str, Tensor]] = {}
    if fills or statistics:
        known = collected(x.shape[1], features, fills, statistics)
    return replace(source, dataset=TensorDataset(x, *others)), known


def collected(
    width: int,
    features: slice,
    fills: Mapping[int, np.ndarray],
    statistics: Mapping[int, tuple[Tensor, Tensor]],
) -> dict[int, dict[str, Tensor]]:
    """Return ``fill``, ``mean`` and ``std`` of all features, float64 of shape (features,), by client.

    Args:
        width: The number of features.
        features: The features that are standardised.
        fills: Fills by client, or of ``GLOBAL``; empty if nothing is filled.
        statistics: Mean and standard deviation by client, or of ``GLOBAL``; empty if nothing is standardised.
    """
    # Where one of the two is of all clients and the other one of each, each client has both.
    clients = {*fills, *statistics}
    if len(clients) > 1:
        clients.discard(GLOBAL)
    found = {}
    for client in sorted(clients):
        fill = torch.full((width,), math.nan, dtype=torch.float64)
        mean = torch.zeros(width, dtype=torch.float64)
        std = torch.ones(width, dtype=torch.float64)
        if fills:
            fill = torch.from_numpy(fills[client if client in fills else GLOBAL])
        if statistics:
            of_client = statistics[client if client in statistics else GLOBAL]
            mean[features], std[features] = of_client
        found[client] = {"fill": fill, "mean": mean, "std": std}
    return found


def choose(known: Mapping[int, Mapping[str, Tensor]], client: int | None) -> Preprocessing:
    """Return the preprocessing of a client, or the one that all share.

    Args:
        known: ``fill``, ``mean`` and ``std`` of each client, or of ``GLOBAL`` where all have the same.
        client: The client; any, or none, where all have the same.

    Raises:
        ValueError: If a client must be named, or this one does not train.
    """
    key = GLOBAL if GLOBAL in known else client
    if key is None:
        raise ValueError(
            f"`client` must be one of the {len(known)} clients that train, because each has statistics of its own "
            "(`standardize='local'` or `impute='local'`), got None."
        )
    if key not in known:
        raise ValueError(f"`client` must be one of the {len(known)} clients that train, got {client!r}.")
    return Preprocessing(**known[key])
