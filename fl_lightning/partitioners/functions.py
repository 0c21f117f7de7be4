"""Any function from labels to a partition: a partitioner, or a function that a user writes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from fl_lightning.checks import short
from fl_lightning.partitioners.base import Partitioner, as_partition
from fl_lightning.partitioners.partition import Partition

PartitionFunction = Partitioner | Callable[[np.ndarray], Partition]
"""A partitioner, which a ``config.yaml`` may name in short, or any function from labels to a partition."""


def check_partitioner(partitioner: Any) -> None:
    """Raise ``TypeError`` unless the argument can be called with labels."""
    if inspect.isclass(partitioner) or not callable(partitioner):
        raise TypeError(
            "`partitioner` must be a partitioner, such as IIDPartitioner(num_clients=100), or a function from labels "
            f"to a partition, got {short(partitioner)}. For sample indices of each client, a Partition or its file: "
            "ExplicitPartitioner(...). For a data set of each client: ClientDatasetsModule(...)."
        )


def partition_by(partitioner: Callable[[np.ndarray], Any], labels: np.ndarray) -> Partition:
    """Return the partition that a partitioner, or a user's function, makes of labels.

    Args:
        partitioner: Takes labels, and returns a partition or the sample indices of each client.
        labels: The class of each sample, shape (num_samples,).

    Raises:
        TypeError: If it cannot be called with labels, or returns neither of the two.
        ValueError: If it returns something that is not a partition of them, or leaves a client without any.
    """
    check_partitioner(partitioner)
    return as_partition("partitioner", partitioner(labels), len(labels))
