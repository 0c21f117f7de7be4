"""The Covertype table: read from the UCI file, checked, and kept beside it in a form that loads fast."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fl_lightning.datamodules.files import UNREADABLE
from fl_lightning.files import atomic_file

NUM_NUMERIC, NUM_AREAS = 10, 4
CONTENT_SHA256 = "17892fe2e90e1e082c4fd4a4aba9dbee1448d1ace7cddbf59ddaccc6c2676377"
"""SHA-256 of the table's arrays, whichever file they were read from."""

_SOURCES = ("covtype.data.gz", "covtype.data")
_CACHE = "covtype.fl_lightning.npz"


class CovertypeTable(NamedTuple):
    """All rows of the table, in the order of the file.

    Attributes:
        numeric: Elevation, aspect, slope, distances and hill shades: int16, shape (N, 10).
        area: Wilderness area, 0 to 3: uint8, shape (N,).
        soil: Soil type less 1, 0 to 39: uint8, shape (N,).
        label: Cover type, 1 to 7: uint8, shape (N,).
    """

    numeric: np.ndarray
    area: np.ndarray
    soil: np.ndarray
    label: np.ndarray

    def digest(self) -> str:
        """Return the SHA-256 of the arrays, in hex."""
        digest = hashlib.sha256()
        for array in self:
            digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)
        return digest.hexdigest()


def find_source(folder: Path) -> Path | None:
    """Return the UCI file in ``folder``, gzipped or plain, or ``None``."""
    return next((folder / name for name in _SOURCES if (folder / name).exists()), None)


def load_table(folder: Path) -> CovertypeTable | None:
    """Return the table from the cache if that is sound, otherwise from the UCI file; ``None`` if there is neither.

    Raises:
        RuntimeError: If the UCI file is damaged.
    """
    source = find_source(folder)
    return read_cache(folder) or (None if source is None else read_source(source))


def read_source(path: Path) -> CovertypeTable:
    """Read the UCI file: no header, 10 numbers, 4 + 40 indicators and the cover type, separated by commas.

    Raises:
        RuntimeError: If it is no such file, or its content is not the data set's.
    """
    import pandas

    try:
        content = pandas.read_csv(path, header=None, dtype=np.int16).to_numpy()
        indicators = np.split(content[:, NUM_NUMERIC:-1], [NUM_AREAS], axis=1)
        area, soil = (part.argmax(axis=1).astype(np.uint8) for part in indicators)
    except (*UNREADABLE, OverflowError) as error:
        raise RuntimeError(f"{path} is damaged: {str(error).strip()}. Delete and refetch it.") from error
    table = CovertypeTable(content[:, :NUM_NUMERIC].copy(), area, soil, content[:, -1].astype(np.uint8))
    found = table.digest()
    if found != CONTENT_SHA256:
        raise RuntimeError(
            f"{path} is damaged: the SHA-256 of its {len(content):,} rows is {found}, expected {CONTENT_SHA256}. "
            "Delete and refetch it."
        )
    return table


def read_cache(folder: Path) -> CovertypeTable | None:
    """Return the table of the cache; ``None`` if there is none, or it is damaged."""
    try:
        with np.load(folder / _CACHE, allow_pickle=False) as content:
            table = CovertypeTable(*(content[name] for name in CovertypeTable._fields))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return table if table.digest() == CONTENT_SHA256 else None


def write_cache(folder: Path, table: CovertypeTable) -> None:
    """Write the cache, whole or not at all."""
    with atomic_file(folder / _CACHE) as temporary, temporary.open("wb") as file:
        np.savez(file, **table._asdict())
