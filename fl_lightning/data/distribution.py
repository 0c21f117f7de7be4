"""How the samples of a source are distributed: what a partitioner is given, and how a split is applied."""

from __future__ import annotations

import numpy as np

from fl_lightning.data.federated_split import FederatedSplit, Split
from fl_lightning.data.source import Source
from fl_lightning.data.test_sets import with_test_set
from fl_lightning.partitioners.base import PartitionFunction


def labels_for(partitioner: PartitionFunction, source: Source) -> np.ndarray | int:
    """Return what a partitioner distributes samples by: their classes, shape (N,), or their number N.

    Raises:
        ValueError: If there are no classes, and it needs some.
    """
    if source.labels is not None:
        return source.labels
    if getattr(partitioner, "needs_classes", False):
        raise ValueError(
            f"{type(partitioner).__name__} distributes samples by class, and no classes were found. Give the "
            "class of each sample as whole numbers: `targets=`, or the `labels` of a Source. If samples have more "
            "than two tensors, give `target=`, the place of the classes. For a regression, make classes by "
            "`np.digitize(y, np.quantile(y, [0.25, 0.5, 0.75]))`, or use IIDPartitioner or "
            "QuantitySkewPartitioner, which need none."
        )
    return len(source)


def numbers_of_clients(source: Source, name: str) -> np.ndarray:
    """Return the client of each sample as a number from 0, shape (N,).

    Args:
        source: The samples.
        name: The class of the data module, for the error.

    Raises:
        ValueError: If the source does not say from which client each sample comes.
    """
    if source.clients is None:
        raise ValueError(
            f"{name} has no `partitioner`, so it is unknown which client holds which sample. "
            "Give one, such as IIDPartitioner(num_clients=100), or the column of the clients if there is one."
        )
    _, numbers = np.unique(source.clients, return_inverse=True)
    return numbers


def applied(split: Split, labels: np.ndarray | int, partitioner: PartitionFunction, source: Source) -> FederatedSplit:
    """Apply a split to a source, whose own test set is the only one unless the split decides alone.

    Args:
        split: The split.
        labels: The class of each sample, shape (N,), or N.
        partitioner: Distributes the samples that are not set aside among clients, by their labels.
        source: The samples.
    """
    is_official = getattr(split, "test", None) == "official"
    if source.test_indices is None or source.pools_test or is_official:
        return split.apply(labels, partitioner, source.test_indices)
    return with_test_set(split, labels, partitioner, source.test_indices)
