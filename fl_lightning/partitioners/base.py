"""What every partitioner takes and returns."""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fl_lightning.arguments import check_count

_FORMAT = "fl_lightning.partition"
_VERSION = 1


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
        digest = hashlib.sha256(f"{_FORMAT}/{_VERSION}/{self.num_clients}".encode())
        for array in self.indices:
            digest.update(len(array).to_bytes(8, "little"))
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and self.fingerprint() == other.fingerprint()

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the partition as JSON: ``format``, ``version``, ``num_clients`` and ``indices``, a list of lists.

        The file appears whole or not at all, in a folder that is made if need be. To write a partition where the
        same one lies already does nothing.

        Raises:
            FileExistsError: If the file holds something else and ``overwrite`` is false.
        """
        path = Path(path)
        indices = [array.tolist() for array in self.indices]
        document = {"format": _FORMAT, "version": _VERSION, "num_clients": self.num_clients, "indices": indices}
        text = json.dumps(document, separators=(",", ":"))
        if path.exists() and not overwrite:
            if path.read_bytes() == text.encode():
                return
            raise FileExistsError(
                f"{path} holds something other than this partition. Choose another path, or give `overwrite=True`."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_atomically(path, text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Partition:
        """Read a partition that :meth:`save` has written.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is no partition of this version, or an invalid one.
        """
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not a JSON file: {error}. Write it with `Partition.save`.") from error
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise ValueError(f"{path} is not a partition: its `format` must be {_FORMAT!r}.")
        if document.get("version") != _VERSION:
            raise ValueError(f"{path} has version {document.get('version')!r}; this release reads version {_VERSION}.")
        indices, num_clients = document.get("indices", []), document.get("num_clients")
        if len(indices) != num_clients:
            raise ValueError(
                f"{path} is damaged: `num_clients` is {num_clients}, `indices` has {len(indices)} entries."
            )
        # numpy would take an empty list for floats
        return cls(tuple(np.array(client) if client else np.array([], dtype=np.int64) for client in indices))


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
        self._check_enough(len(labels))
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

    def _check_enough(self, num_samples: int) -> None:
        if num_samples < self.num_clients:
            raise ValueError(
                f"`num_clients` is {self.num_clients}, but there are only {num_samples} samples, and each client needs "
                f"one. Give at most {num_samples} clients, or more data."
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


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
