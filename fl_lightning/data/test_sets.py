"""The test set that comes with the data: set aside before the partition, or given to the clients of its samples."""

from __future__ import annotations

import numpy as np

from fl_lightning.data.federated_split import GLOBAL, FederatedSplit, Split
from fl_lightning.data.splits import check_test_indices, in_samples
from fl_lightning.partitioners import Partition
from fl_lightning.partitioners.base import PartitionFunction


def with_test_set(
    split: Split, labels: np.ndarray | int, partitioner: PartitionFunction, test_indices: np.ndarray
) -> FederatedSplit:
    """Apply a split to the samples that are not in a test set, which belongs to no client.

    Samples that the split would test on are trained on instead; those of no client are left out.

    Args:
        split: The split.
        labels: The class of each sample, shape (N,), or N.
        partitioner: Distributes the samples that are not set aside among clients, by their labels.
        test_indices: The samples of the test set.
    """
    number = len(labels) if isinstance(labels, np.ndarray) else labels
    test = check_test_indices(test_indices, number)
    # The split sees the other samples alone, and counts them from 0.
    rest = np.setdiff1d(np.arange(number), test)
    labels_of_rest = labels[rest] if isinstance(labels, np.ndarray) else len(rest)
    of_rest = split.apply(labels_of_rest, partitioner, test[:0])

    train: dict[int, np.ndarray] = {}
    for part in (of_rest.train, of_rest.test):
        for client, indices in part.items():
            if client != GLOBAL:
                train[client] = np.append(train.get(client, test[:0]), rest[indices])
    val = {client: rest[indices] for client, indices in of_rest.val.items()}
    partition = in_samples(rest, of_rest.partition)
    return FederatedSplit(dict(sorted(train.items())), val, {GLOBAL: test}, partition)


def with_test_clients(split: FederatedSplit, clients: np.ndarray) -> FederatedSplit:
    """Give the samples of a test set to the clients from which they come.

    Clients without other samples get the last ids.

    Args:
        split: The split, whose other samples are with their clients already.
        clients: The client of each sample, numbers, shape (N,).
    """
    tested = np.concatenate(list(split.test.values()))
    held = {clients[indices[0]]: indices for indices in split.partition.indices}
    id_of = {key: client for client, key in enumerate(held)}
    test: dict[int, np.ndarray] = {}
    for key in np.unique(clients[tested]):
        of_client = tested[clients[tested] == key]
        if key in held:
            held[key] = np.concatenate([held[key], of_client])
        else:
            id_of[key] = len(held)
            held[key] = of_client
        test[id_of[key]] = of_client
    partition = Partition(tuple(held.values()))
    return FederatedSplit(split.train, split.val, dict(sorted(test.items())), partition)
