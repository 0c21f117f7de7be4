"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
import time
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ENVIRONMENT_VARIABLE = "FL_LIGHTNING_DATA"
_DAY = 24 * 60 * 60.0
_CHUNK_BYTES = 2**20
#: What systems say that cannot take room for a file beforehand.
_CANNOT_ALLOCATE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


def data_folder() -> Path:
    """Return the folder of data and weights: the environment variable ``FL_LIGHTNING_DATA``, else ``data``."""
    return Path(os.environ.get(ENVIRONMENT_VARIABLE, "data"))


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file in the folder of another one, and remove it at the end."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, to be written in the block, that takes the place of ``path`` at its end.

    The folder is made if missing. If the block raises, ``path`` stays as it was. The file is on the disk before it
    takes its place, so that this holds when the power fails, too. Remains of killed processes are removed after a day.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f".{path.name}.*.tmp"):
        # Another process may remove it at the same time.
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > _DAY:
                old.unlink()
    try:
        with _temporary(path) as temporary:
            yield temporary
            _sync(temporary)
            os.replace(temporary, path)
            _sync(path.parent)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        # The error of a full disk does not name the file.
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def linked_file(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, to be written in the block, that becomes ``path`` if there is none yet.

    A link fails if its name exists, also on NFS. So of several processes that make the same file, one succeeds, and
    nobody sees it half written.

    Raises:
        FileExistsError: If ``path`` exists.
    """
    with _temporary(path) as temporary:
        yield temporary
        _sync(temporary)
        try:
            os.link(temporary, path)
        except FileExistsError:
            # NFS may repeat a call whose answer was lost: the second one then meets the link that the first one made.
            if temporary.stat().st_nlink < 2:
                raise
        _sync(path.parent)


def write_new(path: Path, content: bytes, what: str, *, overwrite: bool = False) -> None:
    """Write a file that appears whole or not at all; one that holds this content already stays as it is.

    Args:
        path: The file.
        content: Its content.
        what: What the content is, for the error.
        overwrite: Whether another content may be replaced.

    Raises:
        FileExistsError: If the file holds something else and ``overwrite`` is false.
    """
    if path.exists():
        if path.read_bytes() == content:
            return
        if not overwrite:
            raise FileExistsError(
                f"{path} holds something other than this {what}. Choose another place, or give `overwrite=True`."
            )
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    # Windows cannot open a folder.
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def reserve(file: IO[bytes], size: int, path: Path) -> None:
    """Make a file at least ``size`` bytes long and take their room on the disk, before the file is mapped into memory.

    Writing into a mapped file cannot fail with an error: on a full disk the system kills the process (SIGBUS).

    Args:
        file: The file, opened for writing.
        size: Bytes.
        path: The file, or its folder, for the error.

    Raises:
        OSError: If there is not so much room.
    """
    try:
        _allocate(file, size)
    except OSError as error:
        reason = f"{error.strerror}; a file that is mapped into memory needs {size:,} bytes"
        raise OSError(error.errno, reason, str(path)) from error


def _allocate(file: IO[bytes], size: int) -> None:
    file.flush()
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, size)
            return
        except OSError as error:
            if error.errno not in _CANNOT_ALLOCATE:
                raise
    # macOS and some network file systems only take room for what is written.
    missing = size - file.seek(0, os.SEEK_END)
    while missing > 0:
        zeros = bytes(min(missing, _CHUNK_BYTES))
        missing -= file.write(zeros)
    file.flush()


def is_whole(path: Path) -> bool:
    """Return whether a file that ``torch.save`` has written can be read, and agrees with the checksums in it."""
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip() is None
    # A flipped bit in the table of contents can ask for anything.
    except (OSError, zipfile.BadZipFile, EOFError, RuntimeError, ValueError):
        return False


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(name: str, folder: str | os.PathLike[str], hint: str) -> None:
    """Make a folder for results if there is none.

    Args:
        name: The argument that names it.
        folder: Its path.
        hint: A sentence for the error.

    Raises:
        OSError: If it cannot be made, or no file can be written into it.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"`{name}` must be a folder into which files can be written, got {os.fspath(folder)!r}: {error}. {hint}"
        ) from error
