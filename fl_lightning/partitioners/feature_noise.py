"""Feature skew by noise: the same classes everywhere, worse measurements on some clients."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fl_lightning.partitioners.partition import Partition
from fl_lightning.settings import Natural, NotNegative, check


def add_feature_noise(x: Tensor, partition: Partition, level: float, seed: int = 0) -> Tensor:
    """Return inputs to which each client has added Gaussian noise of another level (Li et al. 2022, noise-based skew).

    The standard deviation of client i is ``level * i / (K - 1)``: client 0 has none, the last one ``level``. A sample
    keeps its noise, which depends on the seed, the client and the sample's place there; it is not drawn again in every
    epoch.

    Args:
        x: Inputs of the data set, floating point, shape (num_samples, ...); not changed.
        partition: The samples of each client, usually of an :class:`IIDPartitioner`.
        level: Standard deviation of the last client's noise, in the units of ``x``.
        seed: Seed of the noise.

    Returns:
        A copy of ``x``; samples that belong to no client are as they were.

    Raises:
        ValueError: If ``x`` is not floating point, or an argument is out of range.
    """
    check("`level`", level, NotNegative)
    check("`seed`", seed, Natural)
    check("`x`", x, Tensor)
    check("`partition`", partition, Partition)
    if not x.is_floating_point():
        raise ValueError(f"`x` must be floating point, got {x.dtype}. Convert it first, for example with `x.float()`.")
    noisy = x.clone()
    for client, indices in enumerate(partition.indices):
        # Client 0 has no noise; it may be the only one.
        if client == 0:
            continue
        std = level * client / (partition.num_clients - 1)
        rng = np.random.default_rng([seed, client])
        noise = rng.standard_normal((len(indices), *x.shape[1:]), dtype=np.float32)
        rows = torch.from_numpy(indices).to(x.device)
        noisy[rows] += (torch.from_numpy(noise) * std).to(x)
    return noisy
