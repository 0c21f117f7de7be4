"""Files and folders that appear whole or not at all, and leave nothing behind for long.

A process that is killed cannot remove its temporary file. So the next one that writes the same file does: whoever
writes holds a lock on the temporary file, which the operating system releases at its death, and a temporary file that
nobody holds is removed. Where locks are not available, one that has not changed for a day is.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_LOCK = "writing.lock"  # within a temporary folder
_DAY = 24 * 60 * 60.0
_CHUNK = 2**20  # bytes
_CANNOT_ALLOCATE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, to be written in the block, that takes the place of ``path`` at its end.

    The folder is made if need be. If the block raises, ``path`` stays as it was and the temporary file is removed. The
    file is on the disk before it takes its place, so that this holds when the power fails, too. Temporary files of
    ``path`` that killed processes have left are removed first.
    """
    with temporary_file(path) as temporary, _named_in_errors(path):
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)


@contextmanager
def _named_in_errors(path: Path) -> Iterator[None]:
    """Let errors of the system name a file: that of a full disk comes without."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """Yield the path of a file beside ``path``, on the same device; what is left of it at the end is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(path.parent, path.name)
    temporary = _temporary(path)
    lock = _create_locked(temporary)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
        _release(lock)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary folder, to be filled in the block, that becomes ``path`` at its end.

    If another process has made ``path`` meanwhile, that one stays. If the block raises, nothing is left. Temporary
    folders of ``path`` that killed processes have left are removed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(path.parent, path.name)
    temporary = _temporary(path)
    temporary.mkdir()
    lock = _create_locked(temporary / _LOCK)
    try:
        yield temporary
        (temporary / _LOCK).unlink(missing_ok=True)
        try:
            temporary.rename(path)
        except OSError:
            if not path.exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        _release(lock)


def remove_stale(folder: Path, name: str = "") -> None:
    """Remove the temporary files and folders that killed processes have left.

    Args:
        folder: The folder of the files.
        name: The file that they were to become; any if empty.
    """
    if not folder.is_dir():
        return
    for entry in os.scandir(folder):
        if entry.name.startswith(f".{name}") and _is_temporary(entry.name, name):
            # another process may remove it at the same time, and a folder may be read-only
            with contextlib.suppress(OSError):
                _remove_if_stale(Path(entry.path))


def _temporary(path: Path) -> Path:
    # no process number: on a shared folder another machine may have the same
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")


def _is_temporary(entry: str, name: str) -> bool:
    """Return whether a file's name is one of :func:`_temporary`."""
    stem, dot, key = entry.removesuffix(".tmp").rpartition(".")
    is_key = len(key) == 32 and set(key) <= set("0123456789abcdef")
    return entry.endswith(".tmp") and bool(dot) and is_key and stem in ((f".{name}",) if name else (stem,))


def _create_locked(path: Path) -> int | None:
    """Create a file and lock it; return the handle that holds the lock, or ``None`` if there are no locks."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if fcntl is None:
            os.close(handle)
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            os.close(handle)
            return None
        if os.fstat(handle).st_nlink > 0:
            return handle
        os.close(handle)  # another process took it for a stale one before it was locked
        path.parent.mkdir(exist_ok=True)


def _release(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def _remove_if_stale(path: Path) -> None:
    is_folder = path.is_dir()
    held = path / _LOCK if is_folder else path
    lock = None
    if held.exists() and fcntl is not None:
        lock = os.open(held, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return
        except OSError:  # a file system without locks
            os.close(lock)
            lock = None
    try:
        if lock is not None or time.time() - _last_change(path) > _DAY:
            shutil.rmtree(path) if is_folder else path.unlink()
    finally:
        _release(lock)


def _last_change(path: Path) -> float:
    """Return when a file, or the file of a folder that changed last, was changed."""
    places = [path, *(path.iterdir() if path.is_dir() else ())]
    return max(float(place.stat().st_mtime) for place in places)


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
        reason = f"{error.strerror}; {size:,} bytes are wanted for a file that is mapped into memory"
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
    # macOS and some network file systems only take room for what is written
    missing = size - file.seek(0, os.SEEK_END)
    while missing > 0:
        missing -= file.write(bytes(min(missing, _CHUNK)))
    file.flush()


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(name: str, folder: str | os.PathLike[str], way_out: str) -> None:
    """Make a folder for results if there is none.

    Args:
        name: The argument that names it.
        folder: Its path.
        way_out: A sentence for the error.

    Raises:
        OSError: If it cannot be made, or no file can be written into it.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OSError(
            f"`{name}` must be a folder into which files can be written, got {os.fspath(folder)!r}: {error}. {way_out}"
        ) from error
