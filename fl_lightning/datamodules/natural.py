"""Data whose samples come from known clients: writers, hospitals, devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from fl_lightning.checks import short_repr
from fl_lightning.data import FederatedDataModule, FederatedSplit, Source
from fl_lightning.partitioners import NaturalPartitioner, Partition


class NaturalDataModule(FederatedDataModule):
    """Gives each sample to the client that it comes from, unless there is a partitioner.

    A subclass calls :meth:`_set_clients` in ``load``. Clients are numbered in the order of their sorted keys;
    a client is left out if a split sets all its samples aside. A test set of the data's own belongs to the clients of
    its samples; those without other samples come last.

    Args:
        partitioner: Shares the samples out in place of their own clients.
        **options: Further arguments of :class:`~fl_lightning.data.FederatedDataModule`.
    """

    #: Whether the samples of the data's own test set come from clients.
    tests_clients: ClassVar[bool] = True

    _clients: np.ndarray | None = None  # of each sample
    _names: Sequence[str] = ()

    def _set_clients(self, keys: np.ndarray) -> None:
        """Say from which client each sample comes; ``keys`` are numbers or texts, shape (N,)."""
        names, self._clients = np.unique(keys, return_inverse=True)
        self._names = [str(name) for name in names]

    def _set_clients_by(self, column: str | None, read: Callable[[str], np.ndarray]) -> None:
        """Take the clients from a column; where a partitioner makes them, say that the column does not."""
        if column is None:
            return
        if self.partitioner is None:
            self._set_clients(read(column))
        else:
            rank_zero_info(
                f"{short_repr(self.partitioner)} makes the clients. The column {column!r}, which is `client`, is not "
                "used."
            )

    @property
    def client_names(self) -> list[str] | None:
        """Keys of the clients, in the order of their ids; ``None`` if a partitioner makes them."""
        clients = self.partition.indices
        if self.partitioner is not None or self._clients is None:
            return None
        return [self._names[self._clients[indices[0]]] for indices in clients]

    def federate(self, source: Source) -> FederatedSplit:
        """Share the samples out by their clients, or by the partitioner."""
        if self.partitioner is not None or self._clients is None:
            return super().federate(source)
        # the clients in place of labels: a split may hand over some of the samples, and all of no client's
        split = self.apply_split(self._clients, NaturalPartitioner(), source)
        return self._with_test_clients(split) if self.tests_clients and source.test_indices is not None else split

    def _with_test_clients(self, split: FederatedSplit) -> FederatedSplit:
        """Give the samples of the data's own test set to their clients."""
        assert self._clients is not None
        tested = np.concatenate([*split.test.values()])
        held = {self._clients[indices[0]]: indices for indices in split.partition.indices}
        ids, test = {key: client for client, key in enumerate(held)}, dict[int, np.ndarray]()
        for key in np.unique(self._clients[tested]):
            own = tested[self._clients[tested] == key]
            test[ids.setdefault(key, len(ids))] = own
            held[key] = np.concatenate([held.get(key, own[:0]), own])
        return FederatedSplit(split.train, split.val, dict(sorted(test.items())), Partition(tuple(held.values())))
