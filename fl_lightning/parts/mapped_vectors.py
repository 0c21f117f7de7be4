"""Vectors by client in a file instead of memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.files import reserve
from fl_lightning.settings import PathLike


class MappedVectors:
    """Vectors by client in a memory-mapped file without a name, which vanishes with the process.

    Vectors are appended as clients come, so the file is no longer than what was written (doubled at most), and the
    system keeps in memory what is in use.

    Args:
        folder: Where the file is; made if it is missing.

    Raises:
        OSError: If the disk has no room for the file, or for one that is twice as long.
    """

    def __init__(self, folder: PathLike) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (it lives as long as the rows)
        self._places: dict[int, int] = {}
        self._map: np.ndarray = np.empty((0, 0))

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle holds the vectors. Where it is read, they go into a file of their own.
        return _mapped, (self._folder, {client: vector.clone() for client, vector in self.items()})

    def __contains__(self, client: object) -> bool:
        return client in self._places

    def __getitem__(self, client: int) -> Tensor:
        return torch.from_numpy(self._map[self._places[client]])

    def __setitem__(self, client: int, vector: Tensor) -> None:
        self.make_room({client: vector})
        place = self._places.setdefault(client, len(self._places))
        self._map[place] = vector.detach().cpu().numpy()

    def make_room(self, vectors: Mapping[int, Tensor]) -> None:
        """Make the file long enough for these vectors; if that fails, nothing has changed."""
        new = [client for client in vectors if client not in self._places]
        number = len(self._places) + len(new)
        if number <= len(self._map):
            return
        first = next(iter(vectors.values()))
        row = first.detach().cpu().numpy()
        length = max(16, 2 * len(self._map), number)
        reserve(self._file, length * row.nbytes, self._folder)
        self._map = np.memmap(self._file, dtype=row.dtype, mode="r+", shape=(length, len(row)))

    def items(self) -> Iterator[tuple[int, Tensor]]:
        """Yield (client, vector) pairs; the vectors are views of the file."""
        # With one tensor behind all views a checkpoint writes it from the file, without a copy of each row.
        rows = torch.from_numpy(self._map[: len(self._places)])
        for client, place in self._places.items():
            yield client, rows[place]


def _mapped(folder: Path, vectors: dict[int, Tensor]) -> MappedVectors:
    store = MappedVectors(folder)
    for client, vector in vectors.items():
        store[client] = vector
    return store
