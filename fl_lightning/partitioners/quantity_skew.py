"""Unequal sizes, equal class mixes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fl_lightning.arguments import check_count, check_positive
from fl_lightning.partitioners.base import Partitioner
from fl_lightning.partitioners.labels import check_minimum

_MAX_DRAWS = 1000


class QuantitySkewPartitioner(Partitioner):
    """Client sizes are drawn from Dir(alpha); samples are dealt out at random (Li et al. 2022, quantity skew).

    All samples are used.

    Args:
        num_clients: Number of clients, K.
        alpha: Concentration of the sizes: near 0 gives nearly all samples to one client, large values equal sizes.
        min_partition_size: Sizes are drawn again until every client has at least this many samples.
        seed: Seed of sizes and samples.

    Raises:
        ValueError: If an argument is out of range; on call, if there are too few samples, or 1000 draws always leave a
            client with fewer than ``min_partition_size``.
    """

    def __init__(self, num_clients: int, alpha: float, min_partition_size: int = 10, seed: int = 0) -> None:
        super().__init__(num_clients, seed)
        check_positive("alpha", alpha, "For equal sizes use `IIDPartitioner`.")
        check_count("min_partition_size", min_partition_size)
        self.alpha = alpha
        self.min_partition_size = min_partition_size

    def assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client; see :meth:`Partitioner.assign`."""
        check_minimum(self.num_clients, self.min_partition_size, len(classes))
        rng = self.generator()
        for _ in range(_MAX_DRAWS):
            shares = rng.dirichlet(np.full(self.num_clients, self.alpha))
            ends = (np.cumsum(shares)[:-1] * len(classes)).astype(np.int64)
            if np.diff(ends, prepend=0, append=len(classes)).min() >= self.min_partition_size:
                return np.split(rng.permutation(len(classes)), ends)
        raise ValueError(
            f"In {_MAX_DRAWS} draws from Dir(alpha={self.alpha}) some of the {self.num_clients} clients always had "
            f"fewer samples than `min_partition_size`, {self.min_partition_size}. Raise `alpha`, or lower "
            "`min_partition_size` or `num_clients`."
        )
