"""Label skew by a Dirichlet draw over the clients for each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_lightning.partitioners.base import Partitioner, deal, draw_enough
from fl_lightning.settings import Count, Natural, Positive


@dataclass(eq=False)
class ClasswiseDirichletPartitioner(Partitioner):
    """Each class is divided in proportions drawn from Dir(alpha) (Li et al. 2022, distribution-based label skew).

    Sizes follow from the classes and differ; :class:`DirichletPartitioner` fixes them instead. All samples are used.

    Args:
        num_clients: Number of clients, K.
        alpha: Concentration of the proportions: near 0 gives a class to one client, large values to all alike.
        min_partition_size: Everything is drawn again until every client has at least this many samples.
        self_balancing: Whether a client that already has N / K samples gets no samples of the classes that follow.
        seed: Seed of proportions and samples.

    Raises:
        ValueError: If an argument is out of range; on call, if 1000 draws always leave a client with fewer
            than ``min_partition_size``.

    Example:
        >>> import numpy as np
        >>> labels = np.arange(60) % 3
        >>> ClasswiseDirichletPartitioner(4, alpha=0.5, min_partition_size=5, seed=0)(labels).num_clients
        4
    """

    num_clients: Count
    alpha: Positive
    min_partition_size: Count = 10
    self_balancing: bool = True
    seed: Natural = 0

    needs_classes = True

    def assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client; see :meth:`Partitioner.assign`."""
        rng = self.generator()
        totals = np.bincount(classes)
        counts = draw_enough(self, lambda: self._draw_counts(totals, rng))
        return deal(classes, counts, rng)

    def _draw_counts(self, totals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the samples of each client and class, shape (num_clients, num_classes)."""
        counts = np.zeros((self.num_clients, len(totals)), dtype=np.int64)
        for label, total in enumerate(totals):
            shares = rng.dirichlet(np.full(self.num_clients, self.alpha))
            if self.self_balancing:
                has_room: np.ndarray = counts.sum(axis=1) * self.num_clients < totals.sum()
                shares *= has_room
                # A small alpha may have put everything on clients that are full.
                if not shares.sum() > 0:
                    shares = has_room.astype(np.float64)
            ends: np.ndarray = np.cumsum(shares)[:-1] / shares.sum() * total
            counts[:, label] = np.diff(ends.astype(np.int64), prepend=0, append=total)
        return counts
