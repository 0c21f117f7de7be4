"""The sample indices that a partitioner or a function of the user's has assigned to clients, as a partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fl_lightning.partitioners.partition import Partition
from fl_lightning.representation import short

Assignment = Sequence[np.ndarray] | Sequence[Sequence[int]]
"""The sample indices of each client, client 0 first."""
_MOST_NAMED = 5  # clients in an error


def as_partition(name: str, result: Any, num_samples: int, num_clients: int | None = None) -> Partition:
    """Return the sample indices that a function has returned as a partition.

    Args:
        name: The function, for errors.
        result: What it returned.
        num_samples: Number of samples, N.
        num_clients: How many clients there must be; any number if ``None``.

    Raises:
        TypeError: If it is not one array of integers for each client.
        ValueError: If a sample does not exist or is given twice, a client has none, or the number of clients is wrong.
    """
    if isinstance(result, np.ndarray) and result.shape == (num_samples,):
        raise TypeError(
            f"`{name}` must return the sample indices of each client, got an array of shape {result.shape}. If it "
            "holds the client of each sample, give `[numpy.flatnonzero(clients == k) for k in range(num_clients)]`."
        )
    if not isinstance(result, Iterable) or isinstance(result, (str, Mapping)):
        raise TypeError(
            f"`{name}` must return a Partition, or a list with the sample indices of each client, got {short(result)}."
        )
    clients = tuple(result)
    if num_clients is not None and len(clients) != num_clients:
        raise ValueError(
            f"`{name}` must return the sample indices of {num_clients} clients, which is `num_clients`, got "
            f"{len(clients)}."
        )
    try:
        partition = Partition(clients)
    except (TypeError, ValueError) as error:
        raise type(error)(f"`{name}` returned no valid partition: {error}") from error
    check_samples(name, partition, num_samples, "Leave them out" if num_clients is None else "Lower `num_clients`")
    return partition


def check_samples(name: str, partition: Partition, num_samples: int, way_out: str = "Leave them out") -> None:
    """Raise ``ValueError`` if a client of a partition has a sample that does not exist, or none."""
    for client, indices in enumerate(partition.indices):
        if len(indices) and indices.max() >= num_samples:
            raise ValueError(
                f"`{name}` gave sample {indices.max():,} to client {client}, but there are only {num_samples:,} "
                f"samples, 0 to {num_samples - 1:,}."
            )
    empty = np.flatnonzero(partition.sizes == 0)
    if len(empty):
        named = ", ".join(map(str, empty[:_MOST_NAMED])) + (", ..." if len(empty) > _MOST_NAMED else "")
        who = f"client {named} has" if len(empty) == 1 else f"clients {named} have"
        raise ValueError(
            f"`{name}` must give each client a sample, but {who} none ({len(empty)} of {partition.num_clients} "
            f"clients). {way_out}, or give them some."
        )
