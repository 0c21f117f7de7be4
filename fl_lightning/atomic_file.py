"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, to be written in the block, that takes the place of ``path`` at its end.

    The folder is made if need be. If the block raises, ``path`` stays as it was and the temporary file is removed. The
    file is on the disk before it takes its place, so that this holds when the power fails, too.
    """
    with temporary_file(path) as temporary:
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """Yield the path of a file beside ``path``, on the same device; what is left of it at the end is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # no process number: on a shared folder another machine may have the same
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
