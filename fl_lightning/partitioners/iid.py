"""Independent and identically distributed clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fl_lightning.partitioners.base import Partitioner


class IIDPartitioner(Partitioner):
    """Shuffles the samples and cuts them into parts whose sizes differ by one at most.

    Args:
        num_clients: Number of clients.
        seed: Seed of the shuffle.
    """

    def assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client; see :meth:`Partitioner.assign`."""
        return np.array_split(self.generator().permutation(len(classes)), self.num_clients)
