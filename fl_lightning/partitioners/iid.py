"""The same class mix everywhere: equal or unequal sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_lightning.checks import Count, Natural, Positive
from fl_lightning.partitioners.base import Partitioner

_MAX_DRAWS = 1000


class IIDPartitioner(Partitioner):
    """Shuffles the samples and cuts them into parts whose sizes differ by one at most.

    Args:
        num_clients: Number of clients.
        seed: Seed of the shuffle.
    """

    def assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client; see :meth:`Partitioner.assign`."""
        return np.array_split(self.generator().permutation(len(classes)), self.num_clients)


@dataclass(eq=False)
class QuantitySkewPartitioner(Partitioner):
    """Client sizes are drawn from Dir(alpha); samples are dealt out at random (Li et al. 2022, quantity skew).

    All samples are used.

    Args:
        num_clients: Number of clients, K.
        alpha: Concentration of the sizes: near 0 gives nearly all samples to one client, large values equal sizes.
        min_partition_size: Sizes are drawn again until every client has at least this many samples.
        seed: Seed of sizes and samples.

    Raises:
        ValueError: If an argument is out of range; on call, if 1000 draws always leave a client with fewer than
            ``min_partition_size``.
    """

    num_clients: Count
    alpha: Positive
    min_partition_size: Count = 10
    seed: Natural = 0

    def assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client; see :meth:`Partitioner.assign`."""
        rng = self.generator()
        for _ in range(_MAX_DRAWS):
            shares = rng.dirichlet(np.full(self.num_clients, self.alpha))
            ends = (np.cumsum(shares)[:-1] * len(classes)).astype(np.int64)
            if np.diff(ends, prepend=0, append=len(classes)).min() >= self.min_partition_size:
                return np.split(rng.permutation(len(classes)), ends)
        raise ValueError(
            f"In {_MAX_DRAWS} draws from Dir(alpha={self.alpha}) some of the {self.num_clients} clients always had "
            f"fewer of the {len(classes):,} samples than `min_partition_size`, {self.min_partition_size}. Raise "
            "`alpha`, or lower `min_partition_size` or `num_clients`."
        )
