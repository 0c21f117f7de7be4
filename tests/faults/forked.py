"""Victims: functions that run in forked process groups, to be killed at any moment.

All packages are imported once, in the process that forks; a victim begins at once.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import psutil

_STEP = 0.002  # seconds from one look to the next


class Forked:
    """A function in a process, and all processes that it forks: one process group.

    Args:
        function: What it runs; its status is 0 if that ends without an exception.
        log: File for its output.
    """

    def __init__(self, function: Callable[[], object], log: Path) -> None:
        self.log = log
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._run(function)
        # here too: the parent may signal the group before the child has run
        with contextlib.suppress(PermissionError, ProcessLookupError):  # the child was faster
            os.setpgid(self.pid, self.pid)

    def _run(self, function: Callable[[], object]) -> None:
        status = 1
        try:
            os.setpgid(0, 0)
            output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for descriptor in (1, 2):
                os.dup2(output, descriptor)
            faulthandler.register(signal.SIGUSR2)
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def wait(self, seconds: float) -> int | None:
        """Return the status of the first process, negative for a signal; ``None`` if it has not ended by then."""
        until = time.monotonic() + seconds
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                return None
            else:
                time.sleep(_STEP)
        return self.status

    def children(self) -> list[int]:
        """Return the process numbers of what the first process has forked, the eldest first."""
        return sorted(child.pid for child in psutil.Process(self.pid).children())

    def alive(self) -> list[int]:
        """Return the processes of the group that have not ended."""
        return [pid for pid in psutil.pids() if _is_alive(pid, self.pid)]

    def wait_for_all(self, seconds: float) -> bool:
        """Return whether all processes of the group have ended by then."""
        until = time.monotonic() + seconds
        self.wait(seconds)
        while self.alive():
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def kill(self) -> None:
        """Kill all processes of the group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait_for_all(60.0)

    def where(self) -> str:
        """Return where the processes are that have not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGUSR2)
        time.sleep(0.5)
        return self.output()

    def output(self) -> str:
        """Return the end of what the processes have written."""
        return self.log.read_text(errors="replace")[-6000:] if self.log.exists() else ""


def _is_alive(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False
