"""The lock of a folder: one run at a time, and a message that names the run that is at work."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

_STOPPED = {"T", "t"}


class Lock:
    """A locked folder.

    Args:
        file: The file of the lock; it names the run and its workers, one a line.
    """

    def __init__(self, file: TextIOWrapper) -> None:
        self._file = file
        self._add("run", os.getpid())

    @property
    def descriptor(self) -> int:
        """The file descriptor, for workers to inherit: the folder stays locked until the last of them has ended."""
        return self._file.fileno()

    def add_worker(self, pid: int) -> None:
        """Note the number of a worker process."""
        self._add("worker", pid)

    def _add(self, role: str, pid: int) -> None:
        self._file.write(f"{role} {pid} {_started(pid)} {socket.gethostname()}\n")
        self._file.flush()


@contextlib.contextmanager
def locked(folder: Path, patience: float = 10.0) -> Iterator[Lock | None]:
    """Keep other runs out of a folder.

    Yields:
        The lock; ``None`` on systems without file locks.

    Raises:
        RuntimeError: If another run still holds the folder after ``patience`` seconds.
    """
    try:
        import fcntl
    except ImportError:  # not on Unix
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a+", encoding="utf-8") as file:
        until = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise RuntimeError(_describe(folder, file)) from None
                time.sleep(0.1)
        file.truncate(0)
        yield Lock(file)


@dataclass(frozen=True)
class _Holder:
    """A process that the file of a lock names."""

    role: str
    pid: int
    started: str
    host: str

    @property
    def state(self) -> str:
        """``"alive"``, ``"stopped"``, ``"gone"``, or ``""`` for a process of another machine."""
        if self.host != socket.gethostname():
            return ""
        fields = _status(self.pid)
        if fields is not None:
            if self.started != fields[19]:  # another process has the same number now
                return "gone"
            return "stopped" if fields[0] in _STOPPED else "alive"
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return "gone"
        except PermissionError:
            pass
        return "alive"


def _describe(folder: Path, file: TextIOWrapper) -> str:
    file.seek(0)
    holders = [_holder(line) for line in file.read().splitlines()]
    there = [holder for holder in holders if holder is not None and holder.state != "gone"]
    if not there:
        return f"Another run is at work in {folder}. Wait for it, or choose another `output`."
    names = [
        f"{'its worker' if holder.role == 'worker' else 'process'} {holder.pid}"
        + (" (stopped)" if holder.state == "stopped" else "")
        for holder in there
    ]
    known = " ".join(str(holder.pid) for holder in there)
    ended = "" if there[0].role == "run" else "The run itself has ended, but not all of its workers. "
    command = "kill -KILL" if ended or any(holder.state == "stopped" for holder in there) else "kill"
    return (
        f"Another run is at work in {folder}: {', '.join(names)} on {there[0].host}. {ended}Wait for it, end it there "
        f"with `{command} {known}`, or choose another `output`."
    )


def _holder(line: str) -> _Holder | None:
    """Return the process of a line; ``None`` for a line that is damaged or was written only in part."""
    match line.split(maxsplit=3):
        case ["run" | "worker" as role, pid, started, host] if pid.isascii() and pid.isdigit():
            return _Holder(role, int(pid), started, host)
    return None


def _started(pid: int) -> str:
    """Return when a process started, in the kernel's ticks; ``"-"`` where that cannot be known."""
    fields = _status(pid)
    return "-" if fields is None else fields[19]


def _status(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/<pid>/stat`` behind the name: the state first, and the start at place 19."""
    if not Path("/proc/self/stat").exists():
        return None
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ["X", *["gone"] * 40]
