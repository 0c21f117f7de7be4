"""Reads the logged values of a Weights & Biases run from its offline file."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32768  # bytes; records are split at the blocks' ends, as in LevelDB's logs
_FILE_HEADER, _RECORD_HEADER = struct.Struct("<4sHB"), struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the logged values of a ``run-<id>.wandb`` file, as one dict for each step.

    The file of a killed run may end in the middle of a record; that record is left out.

    Raises:
        ValueError: If it is not a file of a Weights & Biases run.
    """
    steps = []
    for record in read_records(path, "history"):
        items = record.history.item
        steps.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
    return steps


def read_records(path: Path, kind: str) -> Iterator[Any]:
    """Yield the records of one kind of a ``run-<id>.wandb`` file, such as ``"metric"``, ``"config"`` or ``"summary"``.

    Raises:
        ValueError: If it is not a file of a Weights & Biases run.
    """
    from wandb.proto import wandb_internal_pb2

    for content in _records(path):
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        record.ParseFromString(content)
        if record.WhichOneof("record_type") == kind:
            yield record


def _records(path: Path) -> Iterator[bytes]:
    content = path.read_bytes()
    if len(content) < _FILE_HEADER.size or _FILE_HEADER.unpack_from(content)[0] != b":W&B":
        raise ValueError(f"{path} is not a file of a Weights & Biases run. Give a run-<id>.wandb.")
    place, parts = _FILE_HEADER.size, b""
    while place + _RECORD_HEADER.size <= len(content):
        left = _BLOCK - place % _BLOCK
        if left < _RECORD_HEADER.size:  # padding
            place += left
            continue
        _, length, kind = _RECORD_HEADER.unpack_from(content, place)
        place += _RECORD_HEADER.size
        if place + length > len(content):
            return
        parts = (b"" if kind in (_FULL, _FIRST) else parts) + content[place : place + length]
        place += length
        if kind in (_FULL, _LAST):
            yield parts
