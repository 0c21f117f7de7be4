"""Clients that are known beforehand: by a key of each sample, by their indices, or by another library's partitioner."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from fl_lightning.partitioners.base import as_partition, check_samples
from fl_lightning.partitioners.partition import Partition, members
from fl_lightning.settings import Count, check_fields
from fl_lightning.vectors import to_array


@dataclass(eq=False)
class NaturalPartitioner:
    """Makes one client of all samples with the same key: a writer, a speaking role, a hospital.

    It is called with keys, as other partitioners are with labels: ``NaturalPartitioner()(table["writer_id"])``. Clients
    are numbered in the ascending order of their keys, and hold their samples in the order of the data set.

    Args:
        min_partition_size: Clients with fewer samples are left out.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> import numpy as np
        >>> NaturalPartitioner()(np.array([7, 7, 3])).indices
        (array([2]), array([0, 1]))
    """

    min_partition_size: Count = 1

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, keys: np.ndarray) -> Partition:
        """Return the partition of a data set.

        Args:
            keys: The client of each sample, whole numbers or strings, shape (num_samples,).

        Raises:
            TypeError: If the keys are neither.
            ValueError: If they are not 1-D, or no client has enough samples.
        """
        clients, names = self._clients(keys)
        return Partition(members(clients, len(names)))

    def client_names(self, keys: np.ndarray) -> list[str]:
        """Return the key of each client, client 0 first; argument and errors as in the call."""
        return self._clients(keys)[1]

    def _clients(self, keys: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Return the client of each sample, or the number of clients for "none", and the name of each client."""
        array = to_array("keys", keys)
        if array.dtype == object and all(isinstance(key, str) for key in array.flat):
            array = array.astype(np.str_)
        if array.ndim != 1 or array.dtype.kind not in "iuU":
            error = TypeError if array.ndim == 1 else ValueError
            raise error(
                f"`keys` must be whole numbers or strings, 1-D, one for each sample, got {array.dtype} of shape "
                f"{array.shape}. Fill in missing ones, and turn others into strings: `table['column'].astype(str)`."
            )
        unique, key_of_sample, sizes = np.unique(array, return_inverse=True, return_counts=True)
        is_large = sizes >= self.min_partition_size
        if not is_large.any():
            raise ValueError(
                f"No client of `keys` has `min_partition_size` samples, which is {self.min_partition_size}; the most "
                f"are {sizes.max(initial=0)}. Lower it."
            )
        names = [str(key) for key in unique[is_large]]
        client_of_key = np.where(is_large, np.cumsum(is_large) - 1, len(names))
        return client_of_key[key_of_sample], names


class ExplicitPartitioner:
    """Gives each client the samples that the user names.

    Indices count the samples that the partitioner is given, so a split that sets samples aside first, such as
    ``SampleSplit``, changes their meaning; ``ClientSplit`` and ``WithinClientSplit`` do not.

    Args:
        assignment: Sample indices of each client: a partition, the path of a file that ``Partition.save`` has written,
            a list with one array for each client, or a mapping whose clients are numbered in the order of its sorted
            keys.

    Raises:
        TypeError: If an array does not hold integers, or the keys of a mapping cannot be sorted.
        FileNotFoundError: If there is no such file.
        ValueError: If they make no partition; on call, if a sample does not exist or a client has none.

    Example:
        >>> import numpy as np
        >>> ExplicitPartitioner([[0, 3], [1, 2]])(np.array([0, 0, 1, 1])).indices
        (array([0, 3]), array([1, 2]))
    """

    def __init__(
        self,
        assignment: Partition | str | os.PathLike[str] | Sequence[Sequence[int]] | Mapping[int, Sequence[int]],
    ) -> None:
        try:
            if isinstance(assignment, (str, os.PathLike)):
                assignment = Partition.load(assignment)
            if isinstance(assignment, Mapping):
                assignment = [assignment[key] for key in sorted(assignment)]
            if not isinstance(assignment, Partition):
                assignment = Partition(tuple(assignment))  # type: ignore[arg-type]
            self.partition = assignment
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"`assignment` must be a partition, its file, or the sample indices of each client: {error}"
            ) from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.partition!r})"

    def __call__(self, labels: np.ndarray) -> Partition:
        """Return the partition; of the labels, shape (num_samples,), only their number matters."""
        check_samples("assignment", self.partition, len(labels))
        return self.partition


@runtime_checkable
class _Loads(Protocol):
    def load_partition(self, partition_id: int) -> Any: ...


@dataclass(eq=False)
class FlowerPartitioner:
    """Asks a partitioner of flwr-datasets, such as ``flwr_datasets.partitioner.SizePartitioner``, who holds what.

    Args:
        partitioner: An object of flwr-datasets that has no data set yet; it is copied at each call.
        column: The name of the labels, which is the ``partition_by`` of most of them.

    Example:
        >>> from flwr_datasets.partitioner import IidPartitioner  # doctest: +SKIP
        >>> FlowerPartitioner(IidPartitioner(num_partitions=10))  # doctest: +SKIP
    """

    partitioner: _Loads
    column: str = "label"

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, labels: np.ndarray) -> Partition:
        """Return the partition of a data set with these labels, shape (num_samples,)."""
        from datasets import Dataset

        # A partitioner of Flower takes a single data set in its life.
        partitioner: Any = copy.deepcopy(self.partitioner)
        partitioner.dataset = Dataset.from_dict({self.column: labels, "sample": np.arange(len(labels))})
        indices = []
        for client in range(partitioner.num_partitions):
            part = partitioner.load_partition(client)
            indices.append(np.array(part["sample"], dtype=np.int64))
        return as_partition("partitioner", indices, len(labels))
