"""Clients that the data set names: writers, speaking roles, hospitals."""

from __future__ import annotations

import numpy as np

from fl_lightning.arguments import check_count, shape_of, to_array
from fl_lightning.partitioners.partition import Partition
from fl_lightning.representation import ShowsArguments


class NaturalPartitioner(ShowsArguments):
    """Makes one client of all samples with the same key.

    It is called with keys, as other partitioners are with labels: ``NaturalPartitioner()(table["writer_id"])``. Clients
    are numbered in the ascending order of their keys, and hold their samples in the order of the data set.

    Args:
        min_partition_size: Clients with fewer samples are left out.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(self, min_partition_size: int = 1) -> None:
        check_count("min_partition_size", min_partition_size)
        self.min_partition_size = min_partition_size

    def __call__(self, keys: np.ndarray) -> Partition:
        """Return the partition of a data set.

        Args:
            keys: The client of each sample, whole numbers or texts, shape (num_samples,).

        Raises:
            TypeError: If the keys are neither.
            ValueError: If they are not 1-D, there are none, or no client has enough samples.
        """
        clients, number = self._clients(keys)
        ends = np.bincount(clients, minlength=number + 1).cumsum()
        return Partition(tuple(np.split(np.argsort(clients, kind="stable"), ends[:-1])[:number]))

    def client_names(self, keys: np.ndarray) -> list[str]:
        """Return the key of each client, client 0 first; argument and errors as in the call."""
        clients, number = self._clients(keys)
        _, first = np.unique(clients, return_index=True)
        return [str(key) for key in _check_keys(keys)[first[:number]]]

    def _clients(self, keys: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the client of each sample and the number of clients, which also stands for "no client"."""
        _, groups, sizes = np.unique(_check_keys(keys), return_inverse=True, return_counts=True)
        large = sizes >= self.min_partition_size
        number = int(large.sum())
        if number == 0:
            raise ValueError(
                f"No key has `min_partition_size` samples, which is {self.min_partition_size}; the most are "
                f"{sizes.max()}. Lower it."
            )
        return np.where(large, np.cumsum(large) - 1, number)[groups], number


def _check_keys(keys: np.ndarray) -> np.ndarray:
    array = to_array("keys", keys)
    if array.ndim != 1:
        raise ValueError(f"`keys` must be 1-D, one for each sample, got {shape_of(array, keys)}.")
    if len(array) == 0:
        raise ValueError("`keys` is empty: there are no samples to share out among clients. Look at the data set.")
    if array.dtype == object and all(isinstance(key, str) for key in array):
        array = array.astype(np.str_)
    if array.dtype.kind not in "iuU":
        raise TypeError(
            f"`keys` must be whole numbers or texts, got {array.dtype}. Fill in missing ones, and turn others into "
            "texts, for example with `table['column'].astype(str)`."
        )
    return array
