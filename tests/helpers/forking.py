"""Runs functions in forked processes, which begin at once: all packages are imported already."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch


def in_child(work: Callable[..., object], *args: Any, **kwargs: Any) -> int:
    """Run a function in a forked process and return its exit status, negative for a signal."""
    return _status(_forked(lambda: work(*args, **kwargs)))


def on_ranks(work: Callable[[int], object], number: int) -> list[int]:
    """Run a function of the rank in processes that find each other as torchrun's do; return their exit statuses."""
    port = _free_port()

    def run(rank: int) -> None:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
        torch.set_num_threads(1)  # a fork's pool of threads is made anew here, before autograd's threads ask for it
        work(rank)

    children = [_forked(lambda rank=rank: run(rank)) for rank in range(number)]
    return [_status(child) for child in children]


def on_two_processes(work: Callable[[], Any], folder: Path) -> tuple[Any, Any]:
    """Run a function in two processes and return what each of them returns.

    Args:
        work: Trains with ``devices=2`` and ``strategy="ddp"``; what it returns must be readable by ``weights_only``.
        folder: For what the processes return.

    Raises:
        RuntimeError: If one of them fails; its text is that of the errors.
    """

    def save(rank: int) -> None:
        try:
            torch.save(work(), folder / f"rank-{rank}.pt")
        except BaseException:
            (folder / f"rank-{rank}.txt").write_text(traceback.format_exc())
            raise

    if any(on_ranks(save, 2)):
        raise RuntimeError("\n".join(path.read_text() for path in sorted(folder.glob("rank-*.txt"))))
    one, other = (torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(2))
    return one, other


class Forked:
    """A function in a process, and all processes that it forks: one process group, to be killed at any moment.

    Args:
        function: What it runs; its status is 0 if that ends without an exception.
        log: File for its output.
    """

    def __init__(self, function: Callable[[], object], log: Path) -> None:
        self.log, self.function = log, function
        self.process = psutil.Process(_forked(self._run))
        # here too: the parent may signal the group before the child has run
        with contextlib.suppress(PermissionError, ProcessLookupError):  # the child was faster
            os.setpgid(self.process.pid, self.process.pid)

    def _run(self) -> None:
        os.setpgid(0, 0)
        output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        faulthandler.register(signal.SIGUSR2)
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
        while any(_is_alive(process, self.process.pid) for process in psutil.process_iter()):
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

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


def _forked(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def _free_port() -> int:
    """Return a port that nobody listens to, of those that no connection is given by chance."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


def _status(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
