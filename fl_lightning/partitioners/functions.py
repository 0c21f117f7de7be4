"""Any function from labels to a partition: a partitioner, or a function that a user writes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from fl_lightning.arguments import is_sequence
from fl_lightning.partitioners.assignment import as_partition, check_samples
from fl_lightning.partitioners.base import Partitioner
from fl_lightning.partitioners.labels import check_any
from fl_lightning.partitioners.partition import Partition
from fl_lightning.representation import short

PartitionFunction = Partitioner | Callable[[np.ndarray], Partition]
"""A partitioner, which a ``config.yaml`` may name in short, or any function from labels to a partition."""


def check_partitioner(partitioner: Any) -> None:
    """Raise ``TypeError`` unless the argument can be called with labels."""
    if inspect.isclass(partitioner):
        raise TypeError(
            f"`partitioner` must be a partitioner, got the class {partitioner.__name__}. Make one first: "
            f"{partitioner.__name__}(...)."
        )
    if not callable(partitioner):
        raise TypeError(
            "`partitioner` must be a partitioner, such as IIDPartitioner(num_clients=100), or a function from labels "
            f"to a partition, got {short(partitioner)}.{_way_to_partitioner(partitioner)}"
        )
    try:
        signature = inspect.signature(partitioner)
    except (TypeError, ValueError):  # a built-in function does not tell
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise TypeError(
            f"`partitioner` must be a function of one argument, the labels, got {short(partitioner)}{signature} "
            f"({error}). Bind other arguments with `functools.partial`."
        ) from error


def _way_to_partitioner(given: Any) -> str:
    """Return what to give in place of samples that are assigned already."""
    if isinstance(given, Partition):
        return " For a Partition: ExplicitPartitioner(partition)."
    if isinstance(given, os.PathLike) or (isinstance(given, str) and "." in given):
        return " For a saved partition: ExplicitPartitioner(path)."
    clients = list(given.values()) if isinstance(given, Mapping) else given
    if is_sequence(clients) and len(clients) and isinstance(clients[0], Dataset):
        return " For a data set of each client: ClientDatasetsModule(clients)."
    if is_sequence(clients):
        return " For the sample indices of each client: ExplicitPartitioner(indices)."
    return ""


def partition_by(partitioner: Callable[[np.ndarray], Any], labels: np.ndarray) -> Partition:
    """Return the partition that a partitioner, or a user's function, makes of labels.

    Args:
        partitioner: Takes labels, and returns a partition or the sample indices of each client.
        labels: The class of each sample, shape (num_samples,).

    Raises:
        TypeError: If it cannot be called with labels, or returns neither of the two.
        ValueError: If there are no samples, or it returns something that is not a partition of them, or leaves a client
            without any.
    """
    check_partitioner(partitioner)
    check_any(len(labels))
    result = partitioner(labels)
    if isinstance(result, Partition):
        check_samples("partitioner", result, len(labels))
        return result
    return as_partition("partitioner", result, len(labels))
