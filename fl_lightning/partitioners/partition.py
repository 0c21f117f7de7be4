"""The assignment of samples to clients."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fl_lightning.arguments import got, is_sequence, to_array
from fl_lightning.partitioners import partition_file
from fl_lightning.representation import counted


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """The assignment of samples to clients.

    Samples may be left out, but no sample belongs to two clients.

    Args:
        indices: The sample indices of each client, client 0 first; kept as int64 copies.

    Raises:
        TypeError: If ``indices`` are no sequence, or do not hold integers.
        ValueError: If there is no client, a client's indices are not 1-D, an index is negative, or one occurs twice.
    """

    indices: tuple[np.ndarray, ...]

    def __post_init__(self) -> None:
        if not is_sequence(self.indices):
            raise TypeError(
                f"`indices` must be a sequence with one array of sample indices for each client, got "
                f"{got(self.indices)}."
            )
        if len(self.indices) == 0:
            raise ValueError("`indices` must hold one array for each client, got none.")
        arrays = tuple(_as_indices(client, array) for client, array in enumerate(self.indices))
        object.__setattr__(self, "indices", arrays)
        _check_disjoint(arrays)

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

    def __repr__(self) -> str:
        sizes = self.sizes
        total = counted(int(sizes.sum()), "sample")
        return f"Partition({counted(len(sizes), 'client')}, {total}, {sizes.min():,} to {sizes.max():,} each)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and self.fingerprint() == other.fingerprint()

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the partition as a small file that other tools can read.

        A name that ends in ``.json`` gives JSON: ``format``, ``version``, ``num_clients`` and ``indices``, a list of
        lists. One that ends in ``.parquet`` gives Parquet with the columns ``client`` and ``sample``, client 0 first.
        The file appears whole or not at all, in a folder that is made if need be. If the file already holds this
        partition, nothing is written.

        Raises:
            ValueError: If the name ends in neither ``.json`` nor ``.parquet``.
            FileExistsError: If the file holds something else and ``overwrite`` is false.
        """
        partition_file.write(Path(path), self.indices, overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Partition:
        """Read a partition that :meth:`save` has written.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is not a partition of this version, or an invalid one.
        """
        return cls(partition_file.read(Path(path)))


def _as_indices(client: int, given: Sequence[int] | np.ndarray) -> np.ndarray:
    array = to_array(f"indices[{client}]", given)
    if array.ndim != 1:
        raise ValueError(f"`indices` must hold 1-D arrays, but client {client}'s has shape {array.shape}.")
    if array.dtype == bool:
        raise TypeError(
            f"`indices` must hold integers, but client {client}'s are bool, a mask. Give `numpy.flatnonzero(mask)`."
        )
    if array.dtype.kind not in "iu":
        raise TypeError(f"`indices` must hold integers, but client {client}'s are {array.dtype}.")
    return array.astype(np.int64)


def _check_disjoint(arrays: Sequence[np.ndarray]) -> None:
    merged = np.concatenate(arrays)
    ascending = np.sort(merged)
    if len(ascending) and ascending[0] < 0:
        raise ValueError(f"`indices` must not be negative, got {ascending[0]}.")
    repeated = np.flatnonzero(ascending[1:] == ascending[:-1])
    if len(repeated):
        sample = ascending[repeated[0]]
        ends = np.cumsum([len(array) for array in arrays])
        first, second = np.searchsorted(ends, np.flatnonzero(merged == sample)[:2], side="right")
        where = f"twice to client {first}" if first == second else f"to clients {first} and {second}"
        raise ValueError(
            f"`indices` must be disjoint, but sample {sample} is given more than once, {where}. Give each "
            "sample to one client."
        )
