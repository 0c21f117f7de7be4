"""Reads the files of offline runs of Weights & Biases, for which the package wandb has no reader.

A ``run-<id>.wandb`` holds protocol buffers in blocks, as a log of LevelDB does: a record that does not fit into a block
is split, and its parts say whether they are the first, the last or all of it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32768  # bytes
_FILE_HEADER = 7
_RECORD_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the logged values of a ``run-<id>.wandb`` file, as one dict for each step."""
    return [values_in(record.history.item) for record in read_records(path, "history")]


def values_in(items: Iterable[Any]) -> dict[str, Any]:
    """Return the values of a record by their names."""
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def read_records(path: Path, kind: str) -> Iterator[Any]:
    """Yield the records of one kind of a ``run-<id>.wandb`` file, such as ``"metric"``, ``"config"``, ``"summary"``."""
    from wandb.proto import wandb_internal_pb2

    for content in _records(path):
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        record.ParseFromString(content)
        if record.WhichOneof("record_type") == kind:
            yield record


def _records(path: Path) -> Iterator[bytes]:
    content = path.read_bytes()
    place, parts = _FILE_HEADER, b""
    while place + _RECORD_HEADER.size <= len(content):
        left = _BLOCK - place % _BLOCK
        if left < _RECORD_HEADER.size:  # padding
            place += left
            continue
        _, length, kind = _RECORD_HEADER.unpack_from(content, place)
        place += _RECORD_HEADER.size
        parts = (b"" if kind in (_FULL, _FIRST) else parts) + content[place : place + length]
        place += length
        if kind in (_FULL, _LAST):
            yield parts
