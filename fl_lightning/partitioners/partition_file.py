"""Partitions as files: JSON or Parquet, by the end of the name."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fl_lightning.files import atomic_file

FORMAT = "fl_lightning.partition"
VERSION = 1


def write(path: Path, indices: Sequence[np.ndarray], overwrite: bool) -> None:
    """Write sample indices of each client; see :meth:`Partition.save`."""
    if path.suffix.lower() not in (".json", ".parquet"):
        raise ValueError(f"`path` must end in .json or .parquet, got {str(path)!r}.")
    content = _to_parquet(indices) if _is_parquet(path) else _to_json(indices)
    if path.exists() and not overwrite:
        if path.read_bytes() == content:
            return
        raise FileExistsError(
            f"{path} holds something other than this partition. Choose another path, or give `overwrite=True`."
        )
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)


def read(path: Path) -> tuple[np.ndarray, ...]:
    """Read sample indices of each client; see :meth:`Partition.load`."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a partition. Give a file that `Partition.save` has written.")
    return _from_parquet(path) if _is_parquet(path) else _from_json(path)


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def _to_json(indices: Sequence[np.ndarray]) -> bytes:
    header = {"format": FORMAT, "version": VERSION, "num_clients": len(indices)}
    return json.dumps({**header, "indices": [array.tolist() for array in indices]}, separators=(",", ":")).encode()


def _from_json(path: Path) -> tuple[np.ndarray, ...]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not a JSON file: {error}. Write it with `Partition.save`.") from error
    num_clients = _check_header(path, document)
    indices = document.get("indices")
    if not isinstance(indices, list) or not all(isinstance(client, list) for client in indices):
        raise ValueError(f"{path} is damaged: `indices` must be a list with a list of samples for each client.")
    if len(indices) != num_clients:
        raise ValueError(f"{path} is damaged: `num_clients` is {num_clients}, `indices` has {len(indices)} entries.")
    wrong = next((sample for client in indices for sample in client if type(sample) is not int), None)
    if wrong is not None:
        raise ValueError(f"{path} is damaged: `indices` must hold whole numbers, got {wrong!r}.")
    # numpy would take an empty list for floats
    return tuple(np.array(client) if client else np.array([], dtype=np.int64) for client in indices)


def _to_parquet(indices: Sequence[np.ndarray]) -> bytes:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    clients = np.repeat(np.arange(len(indices)), [len(array) for array in indices])
    table = pyarrow.table({"client": clients, "sample": np.concatenate(indices)})
    header = {"format": FORMAT, "version": VERSION, "num_clients": len(indices)}
    buffer = io.BytesIO()
    parquet.write_table(table.replace_schema_metadata({FORMAT: json.dumps(header)}), buffer)
    return buffer.getvalue()


def _from_parquet(path: Path) -> tuple[np.ndarray, ...]:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except FileNotFoundError:
        raise
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} is not a Parquet file: {error}. Write it with `Partition.save`.") from error
    num_clients = _check_header(path, json.loads((table.schema.metadata or {}).get(FORMAT.encode(), b"null")))
    wrong = [name for name in ("client", "sample") if not _is_whole(table, name)]
    if wrong:
        raise ValueError(f"{path} is damaged: it must have a column `{wrong[0]}` of whole numbers, without gaps.")
    clients, samples = (table[name].to_numpy() for name in ("client", "sample"))
    if (np.diff(clients, prepend=0, append=num_clients - 1) < 0).any():
        raise ValueError(
            f"{path} is damaged: `client` must ascend from 0 to at most {num_clients - 1}, by `num_clients`."
        )
    return tuple(np.split(samples, np.bincount(clients, minlength=num_clients).cumsum()[:-1]))


def _is_whole(table: Any, name: str) -> bool:
    """Return whether a table has a column of whole numbers of which none is missing."""
    from pyarrow.types import is_integer  # type: ignore[import-untyped]

    return name in table.column_names and is_integer(table[name].type) and table[name].null_count == 0


def _check_header(path: Path, header: Any) -> int:
    """Return the number of clients."""
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError(f"{path} is not a partition: its `format` must be {FORMAT!r}.")
    if header.get("version") != VERSION:
        raise ValueError(f"{path} has version {header.get('version')!r}; this release reads version {VERSION}.")
    num_clients = header.get("num_clients")
    if type(num_clients) is not int or num_clients < 1:
        raise ValueError(f"{path} is damaged: `num_clients` must be a whole number of at least 1, got {num_clients!r}.")
    return num_clients
