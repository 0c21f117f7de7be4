"""Some clients hold all classes, the others only a few."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np

from fl_lightning.arguments import check_count, got
from fl_lightning.partitioners.base import Partitioner
from fl_lightning.partitioners.dealing import deal, share_equally


class LimitedClassesPartitioner(Partitioner):
    """Fast and slow devices differ in the classes they hold (Gao et al. 2024, experiments 1.2 and 1.3).

    A client with all classes takes floor(N_c / K) samples of each class c. The j-th limited client holds the classes
    kj, kj + 1, ..., kj + k - 1 modulo C, and the rest of a class is shared equally among the limited clients that hold
    it, or among all others if none does. All samples are used.

    Args:
        num_clients: Number of clients, K.
        limited_clients: The clients with few classes; at least one, and not all.
        num_classes_per_partition: Classes of a limited client, k.
        seed: Seed of the samples.

    Raises:
        TypeError: If ``limited_clients`` are a mask.
        ValueError: If an argument is out of range; on call, if there are fewer than k classes, or a client gets no
            samples.
    """

    needs_classes = True

    def __init__(
        self, num_clients: int, limited_clients: Sequence[int], num_classes_per_partition: int = 3, seed: int = 0
    ) -> None:
        super().__init__(num_clients, seed)
        check_count("num_classes_per_partition", num_classes_per_partition)
        listed = list(limited_clients) if np.iterable(limited_clients) else []
        if any(isinstance(client, (bool, np.bool_)) for client in listed):
            raise TypeError(
                f"`limited_clients` must be clients, not a mask of booleans, got {got(limited_clients)}. Give "
                "`numpy.flatnonzero(mask)`."
            )
        try:
            given = [operator.index(client) for client in listed]
        except TypeError:
            given = []
        limited = sorted(set(given))
        if (
            len(limited) < len(given)
            or not 0 < len(limited) < num_clients
            or limited[0] < 0
            or limited[-1] >= num_clients
        ):
            raise ValueError(
                f"`limited_clients` must name at least one client and not all, each once, of 0 to {num_clients - 1}, "
                f"got {got(limited_clients)}. For all use `PathologicalPartitioner`, for none `IIDPartitioner`."
            )
        self.limited_clients = limited
        self.num_classes_per_partition = num_classes_per_partition

    def assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client; see :meth:`Partitioner.assign`."""
        counts = self._counts(np.bincount(classes))
        if (counts.sum(axis=1) == 0).any():
            raise ValueError(
                f"Client {int(counts.sum(axis=1).argmin())} gets none of the {len(classes):,} samples. Give fewer "
                "clients or more samples."
            )
        return deal(classes, counts, self.generator())

    def _counts(self, totals: np.ndarray) -> np.ndarray:
        k, num_classes = self.num_classes_per_partition, len(totals)
        if k > num_classes:
            raise ValueError(
                f"`num_classes_per_partition` is {k}, but there are only {num_classes} classes. Give at most "
                f"{num_classes}."
            )
        full = np.ones((self.num_clients, num_classes), dtype=bool)
        full[self.limited_clients] = False
        limited = np.zeros_like(full)
        for position, client in enumerate(self.limited_clients):
            limited[client, (k * position + np.arange(k)) % num_classes] = True
        counts: np.ndarray = full * (totals // self.num_clients)
        rest = np.where(limited.any(axis=0), limited, full)
        counts += share_equally(rest, totals - counts.sum(axis=0))
        return counts
