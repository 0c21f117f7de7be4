"""A test set of the data's own: set aside before the partition, or given to the clients of its samples."""

from __future__ import annotations

import numpy as np

from fl_lightning.data.federated_split import GLOBAL, FederatedSplit, Split
from fl_lightning.data.splits import check_test_indices
from fl_lightning.partitioners import Partition
from fl_lightning.partitioners.base import PartitionFunction


def with_test_set(
    split: Split, labels: np.ndarray | int, partitioner: PartitionFunction, test_indices: np.ndarray
) -> FederatedSplit:
    """Apply a split to the samples that are not in a test set, which belongs to no client.

    What the split would test on trains. Samples of no client that it would test on are left out.

    Args:
        split: The split.
        labels: The class of each sample, shape (N,), or N.
        partitioner: Distributes the samples that are not set aside among clients, by their labels.
        test_indices: The samples of the test set.
    """
    number = len(labels) if isinstance(labels, np.ndarray) else labels
    test = check_test_indices(test_indices, number)
    # the split sees the other samples alone, and counts them from 0
    rest = np.setdiff1d(np.arange(number), test)
    labels_of_rest = labels[rest] if isinstance(labels, np.ndarray) else len(rest)
    of_rest = split.apply(labels_of_rest, partitioner, test[:0])

    train = {}
    for client in sorted({*of_rest.train, *of_rest.test} - {GLOBAL}):
        parts = [part[client] for part in (of_rest.train, of_rest.test) if client in part]
        train[client] = rest[np.concatenate(parts)]
    val = {client: rest[indices] for client, indices in of_rest.val.items()}
    partition = Partition(tuple(rest[indices] for indices in of_rest.partition.indices))
    return FederatedSplit(train, val, {GLOBAL: test}, partition)


def with_test_clients(split: FederatedSplit, clients: np.ndarray) -> FederatedSplit:
    """Give the samples of a test set to the clients from which they come.

    Clients without other samples get the last ids.

    Args:
        split: The split, whose other samples are with their clients already.
        clients: The client of each sample, numbers, shape (N,).
    """
    tested = np.concatenate(list(split.test.values()))
    held = {clients[indices[0]]: indices for indices in split.partition.indices}
    ids = {key: client for client, key in enumerate(held)}
    test: dict[int, np.ndarray] = {}
    for key in np.unique(clients[tested]):
        of_client = tested[clients[tested] == key]
        test[ids.setdefault(key, len(ids))] = of_client
        held[key] = np.concatenate([held[key], of_client]) if key in held else of_client
    return FederatedSplit(split.train, split.val, dict(sorted(test.items())), Partition(tuple(held.values())))
