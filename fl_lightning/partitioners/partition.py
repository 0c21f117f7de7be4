"""The assignment of samples to clients, and its file."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fl_lightning.files import write_new
from fl_lightning.settings import check
from fl_lightning.vectors import to_indices

_FORMAT = "fl_lightning.partition"
_VERSION = 1


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """The assignment of samples to clients.

    Samples may be left out, but no sample belongs to two clients.

    Args:
        indices: The sample indices of each client, client 0 first; kept as int64 copies.

    Raises:
        TypeError: If ``indices`` are not a sequence, or do not hold integers.
        ValueError: If there is no client, a client's indices are not 1-D, an index is negative, or one occurs twice.

    Example:
        >>> import numpy as np
        >>> partition = Partition((np.array([0, 2]), np.array([1])))
        >>> partition.num_clients, partition.sizes.tolist()
        (2, [2, 1])
    """

    indices: tuple[np.ndarray, ...]

    def __post_init__(self) -> None:
        check("`indices`", self.indices, Sequence[Any])
        arrays = [to_indices(f"indices[{client}]", array) for client, array in enumerate(self.indices)]
        _check_disjoint(arrays)
        object.__setattr__(self, "indices", tuple(arrays))

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

    def __repr__(self) -> str:
        sizes = self.sizes
        return f"Partition({len(sizes):,} clients, {sizes.sum():,} samples, {sizes.min():,} to {sizes.max():,} each)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Partition) and self.fingerprint() == other.fingerprint()

    def __hash__(self) -> int:
        return hash(self.fingerprint())

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the partition as a small file that other tools can read.

        A name that ends in ``.json`` gives JSON: ``format``, ``version``, ``num_clients``, ``fingerprint`` (which
        :meth:`load` compares, if there is one) and ``indices``, a list of lists. One that ends in ``.parquet`` gives
        Parquet with the columns ``client`` and ``sample``, client 0 first.
        The file appears whole or not at all; its folder is made if missing. If the file already holds this partition,
        nothing is written.

        Raises:
            ValueError: If the name ends in neither ``.json`` nor ``.parquet``.
            FileExistsError: If the file holds something else and ``overwrite`` is false.
        """
        path = Path(path)
        if path.suffix.lower() not in (".json", ".parquet"):
            raise ValueError(f"`path` must end in .json or .parquet, got {str(path)!r}.")
        content = self._to_parquet() if _is_parquet(path) else self._to_json()
        write_new(path, content, "partition", overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Partition:
        """Read a partition that :meth:`save` has written.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is not a partition of this version, or an invalid one, or damaged.
        """
        path = Path(path)
        content = path.read_bytes()
        try:
            read = _from_parquet if _is_parquet(path) else _from_json
            header, indices = read(content)
            if header["format"] != _FORMAT or header["version"] != _VERSION or header["num_clients"] != len(indices):
                raise ValueError(f"its header is {header}")
            partition = cls(indices)
            if "fingerprint" in header and header["fingerprint"] != partition.fingerprint():
                raise ValueError("its content does not agree with its fingerprint, so it is damaged")
            return partition
        # pyarrow raises exceptions of many kinds for a damaged file.
        except Exception as error:
            raise ValueError(
                f"{path} is not a partition of version {_VERSION} that `Partition.save` has written: "
                f"{str(error).removesuffix('.')}."
            ) from error

    def _header(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "num_clients": self.num_clients,
            "fingerprint": self.fingerprint(),
        }

    def _to_json(self) -> bytes:
        document = self._header()
        document["indices"] = [array.tolist() for array in self.indices]
        return json.dumps(document, separators=(",", ":")).encode()

    def _to_parquet(self) -> bytes:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet

        columns = {
            "client": np.repeat(np.arange(self.num_clients), self.sizes),
            "sample": np.concatenate(self.indices),
        }
        table = pyarrow.table(columns, metadata={_FORMAT: json.dumps(self._header())})
        buffer = io.BytesIO()
        parquet.write_table(table, buffer)
        return buffer.getvalue()


def members(groups: np.ndarray, number: int) -> tuple[np.ndarray, ...]:
    """Return the samples of each group, in the order of the data set.

    Args:
        groups: The group of each sample, whole numbers from 0, shape (num_samples,).
        number: Groups that are asked for, the first ones.
    """
    ends = np.bincount(groups, minlength=number).cumsum()
    by_group = np.argsort(groups, kind="stable")
    return tuple(np.split(by_group, ends)[:number])


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def _from_json(content: bytes) -> tuple[dict[str, Any], tuple[np.ndarray, ...]]:
    """Return the header, and the sample indices of each client."""
    document = json.loads(content)
    indices = document.pop("indices")
    return document, tuple(indices)


def _from_parquet(content: bytes) -> tuple[dict[str, Any], tuple[np.ndarray, ...]]:
    """Return the header, and the sample indices of each client."""
    from pyarrow import parquet

    table = parquet.read_table(io.BytesIO(content))
    header = json.loads((table.schema.metadata or {})[_FORMAT.encode()])
    clients = table["client"].to_numpy()
    samples = table["sample"].to_numpy()
    return header, tuple(samples[rows] for rows in members(clients, header["num_clients"]))


def _check_disjoint(arrays: Sequence[np.ndarray]) -> None:
    if not arrays:
        raise ValueError("`indices` must hold one array for each client, got none.")
    samples, counts = np.unique(np.concatenate(arrays), return_counts=True)
    if samples.min(initial=0) < 0:
        raise ValueError(f"`indices` must not be negative, got {samples.min()}.")
    if counts.max(initial=0) > 1:
        sample = samples[counts.argmax()]
        clients = [client for client, array in enumerate(arrays) if sample in array]
        raise ValueError(
            f"`indices` must be disjoint, but sample {sample} is given more than once, to {clients}. Give each sample "
            "to one client."
        )
