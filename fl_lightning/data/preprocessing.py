"""What was done to the inputs of samples at set-up, for inputs that come later."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from fl_lightning.data.federated_split import GLOBAL
from fl_lightning.data.inputs import along, apply_statistics


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
