"""What every partitioner takes and returns."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fl_lightning.arguments import check_count
from fl_lightning.partitioners import partition_file


@dataclass(frozen=True, eq=False)
class Partition:
    """Which samples belong to which client.

    Samples may be left out, but no sample belongs to two clients.

    Args:
        indices: One array of sample indices for each client, client 0 first; kept as int64 copies.

    Raises:
        TypeError: If an array does not hold integers.
        ValueError: If there is no client, an array is not 1-D, an index is negative, or one occurs twice.
    """

    indices: tuple[np.ndarray, ...]

    def __post_init__(self) -> None:
        if len(self.indices) == 0:
            raise ValueError("`indices` must hold one array for each client, got none.")
        arrays = tuple(_as_indices(client, array) for client, array in enumerate(self.indices))
        object.__setattr__(self, "indices", arrays)
        merged = np.sort(np.concatenate(arrays))
        if len(merged) and merged[0] < 0:
            raise ValueError(f"`indices` must not be negative, got {merged[0]}.")
        repeated = merged[1:][merged[1:] == merged[:-1]]
        if len(repeated):
            raise ValueError(f"`indices` must be disjoint, but sample {repeated[0]} is given more than once.")

    @property
    def num_clients(self) -> int:
        """Number of clients, K."""
        return len(self.indices)

    @property
    def sizes(self) -> np.ndarray:
        """Samples of each client, n_k: int64, shape (num_clients,)."""
        return np.array([len(array) for array in self.indices], dtype=np.int64)

    def fingerprint(self) -> str:
        """Return the SHA-256 of clients, samples and their order, in hex; the same on every machine."""
        digest = hashlib.sha256(f"{partition_file.FORMAT}/{partition_file.VERSION}/{self.num_clients}".encode())
        for array in self.indices:
            digest.update(len(array).to_bytes(8, "little"))
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and self.fingerprint() == other.fingerprint()

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the partition as a small file that other tools can read.

        JSON has ``format``, ``version``, ``num_clients`` and ``indices``, a list of lists. Parquet, where the name ends
        in ``.parquet``, has the columns ``client`` and ``sample``, client 0 first. The file appears whole or not at
        all, in a folder that is made if need be. To write a partition where the same one lies already does nothing.

        Raises:
            FileExistsError: If the file holds something else and ``overwrite`` is false.
        """
        partition_file.write(Path(path), self.indices, overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Partition:
        """Read a partition that :meth:`save` has written.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is no partition of this version, or an invalid one.
        """
        return cls(partition_file.read(Path(path)))


class Partitioner(ABC):
    """Shares samples out over clients, by their labels.

    A partitioner is a pure function of the labels and its seed: it draws from a generator of its own.

    Args:
        num_clients: Number of clients, K.
        seed: Seed of the partitioner's generator.

    Raises:
        ValueError: If ``num_clients`` is below 1 or ``seed`` below 0.
    """

    def __init__(self, num_clients: int, seed: int = 0) -> None:
        check_count("num_clients", num_clients)
        check_count("seed", seed, minimum=0)
        self.num_clients = num_clients
        self.seed = seed

    def __call__(self, labels: np.ndarray) -> Partition:
        """Return the partition of a data set; every client gets at least one sample.

        Args:
            labels: The class of each sample, integers, shape (num_samples,).

        Raises:
            TypeError: If the labels are no integers.
            ValueError: If they are not 1-D, or fewer than clients.
        """
        labels = check_labels(labels)
        check_enough(self.num_clients, len(labels))
        _, classes = np.unique(labels, return_inverse=True)
        return Partition(tuple(self._assign(classes)))

    @abstractmethod
    def _assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client.

        Args:
            classes: The class of each sample, renumbered to 0, ..., C-1 without gaps, shape (num_samples,).
        """

    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


def check_enough(num_clients: int, num_samples: int) -> None:
    """Raise ``ValueError`` unless there is a sample for each client."""
    if num_samples < num_clients:
        raise ValueError(
            f"`num_clients` is {num_clients}, but there are only {num_samples} samples, and each client needs one. "
            f"Give at most {num_samples} clients, or more data."
        )


def check_minimum(num_clients: int, min_partition_size: int, num_samples: int) -> None:
    """Raise ``ValueError`` unless all clients together can have their least number of samples."""
    if num_clients * min_partition_size > num_samples:
        raise ValueError(
            f"`min_partition_size` is {min_partition_size}, but {num_samples} samples are too few for {num_clients} "
            "clients with so many. Lower `min_partition_size` or `num_clients`."
        )


def check_labels(labels: np.ndarray) -> np.ndarray:
    """Return labels as an array.

    Raises:
        TypeError: If they are no integers.
        ValueError: If they are not 1-D.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(f"`labels` must be 1-D, one class for each sample, got shape {labels.shape}.")
    if labels.dtype.kind not in "iu":
        raise TypeError(
            f"`labels` must be integers, got {labels.dtype}. Number the classes, for example with "
            "`numpy.unique(labels, return_inverse=True)[1]`."
        )
    return labels


def _as_indices(client: int, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array)
    if array.ndim != 1:
        raise ValueError(f"`indices` must hold 1-D arrays, but client {client}'s has shape {array.shape}.")
    if array.dtype.kind not in "iu":
        raise TypeError(f"`indices` must hold integers, but client {client}'s are {array.dtype}.")
    return array.astype(np.int64)
