"""Runs functions in forked processes, which begin at once: all packages are imported already."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing.forkserver
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from fl_lightning.testing.processes import forked, status_of
from helpers.waiting import wait_for


def in_child(work: Callable[..., object], *args: Any, **kwargs: Any) -> int:
    """Run a function in a forked process and return its exit status, negative for a signal."""
    return status_of(forked(lambda: work(*args, **kwargs)))


class Forked:
    """A function in a process, and all processes that it forks: one process group, to be killed at any moment.

    Args:
        function: What it runs; its status is 0 if that ends without an exception.
        log: File for its output.
    """

    def __init__(self, function: Callable[[], object], log: Path) -> None:
        self.log, self.function = log, function
        self.process = psutil.Process(forked(self._run))
        # here too: the parent may signal the group before the child has run
        with contextlib.suppress(PermissionError, ProcessLookupError):  # the child was faster
            os.setpgid(self.process.pid, self.process.pid)

    def _run(self) -> None:
        os.setpgid(0, 0)
        output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        faulthandler.register(signal.SIGUSR2)
        # A fork server that the parent has started is no child of this process, which can wait for its children alone.
        multiprocessing.forkserver._forkserver.__init__()  # type: ignore[misc, attr-defined]
        self.function()

    def wait(self, seconds: float) -> int | None:
        """Return the status of the first process, negative for a signal; ``None`` if it has not ended by then."""
        try:
            status: int | None = self.process.wait(seconds)
        except psutil.TimeoutExpired:
            return None
        return status

    def children(self) -> list[int]:
        """Return the process numbers of what the first process has forked, the eldest first."""
        return sorted(child.pid for child in self.process.children())

    def wait_for_all(self, seconds: float) -> bool:
        """Return whether all processes of the group have ended by then."""
        until = time.monotonic() + seconds
        self.wait(seconds)
        return wait_for(self._all_have_ended, until - time.monotonic())

    def _all_have_ended(self) -> bool:
        return not any(_is_alive(process, self.process.pid) for process in psutil.process_iter())

    def kill(self) -> None:
        """Kill all processes of the group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.wait_for_all(60.0)

    def where(self) -> str:
        """Return where the processes are that have not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGUSR2)
        time.sleep(0.5)
        return self.output()

    def output(self) -> str:
        """Return the end of what the processes have written."""
        return self.log.read_text(errors="replace")[-6000:] if self.log.exists() else ""


def _is_alive(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False
