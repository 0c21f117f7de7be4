"""The same class mix everywhere: equal or unequal sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_lightning.partitioners.base import Partitioner, draw_enough
from fl_lightning.settings import Count, Natural, Positive


class IIDPartitioner(Partitioner):
    """Shuffles the samples and cuts them into parts whose sizes differ by one at most.

    Args:
        num_clients: Number of clients.
        seed: Seed of the shuffle.

    Example:
        >>> import numpy as np
        >>> labels = np.arange(60) % 3
        >>> IIDPartitioner(4, seed=0)(labels).sizes.tolist()
        [15, 15, 15, 15]
    """

    def assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client; see :meth:`Partitioner.assign`."""
        shuffled = self.generator().permutation(len(classes))
        return np.array_split(shuffled, self.num_clients)


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

    Example:
        >>> import numpy as np
        >>> labels = np.arange(60) % 3
        >>> QuantitySkewPartitioner(4, alpha=0.5, min_partition_size=5, seed=0)(labels).sizes.sum().item()
        60
    """

    num_clients: Count
    alpha: Positive
    min_partition_size: Count = 10
    seed: Natural = 0

    def assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client; see :meth:`Partitioner.assign`."""
        rng = self.generator()
        num_samples = len(classes)

        def draw_sizes() -> np.ndarray:
            shares = rng.dirichlet(np.full(self.num_clients, self.alpha))
            ends = np.cumsum(shares)[:-1] * num_samples
            sizes = np.diff(ends.astype(np.int64), prepend=0, append=num_samples)
            # One column: all samples count as one class.
            return sizes[:, None]

        ends = np.cumsum(draw_enough(self, draw_sizes))
        return np.split(rng.permutation(num_samples), ends[:-1])
