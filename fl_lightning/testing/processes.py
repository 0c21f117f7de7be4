"""Functions in forked processes, which begin at once: all packages are imported already."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

#: Seconds between two looks at processes that have a time limit.
_LOOK = 0.05


def on_two_processes(work: Callable[[], Any], folder: Path, seconds: float | None = None) -> tuple[Any, Any]:
    """Run a function in two processes and return what each of them returns.

    Args:
        work: Trains with ``devices=2`` and ``strategy="ddp"``; what it returns must be readable by ``weights_only``.
        folder: For what the processes return.
        seconds: How long they may take; ``None`` for any time.

    Raises:
        TimeoutError: If they take longer.
        RuntimeError: If one of them fails; its text is that of the errors.
    """

    def save(rank: int) -> None:
        try:
            torch.save(work(), folder / f"rank-{rank}.pt")
        except BaseException:
            (folder / f"rank-{rank}.txt").write_text(traceback.format_exc(), encoding="utf-8")
            raise

    if any(on_ranks(save, 2, seconds)):
        raise RuntimeError("\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("rank-*.txt"))))
    first = torch.load(folder / "rank-0.pt", weights_only=True)
    second = torch.load(folder / "rank-1.pt", weights_only=True)
    return first, second


def on_ranks(work: Callable[[int], object], number: int, seconds: float | None = None) -> list[int]:
    """Run a function of the rank in processes that find each other as torchrun's do; return their exit statuses.

    Raises:
        TimeoutError: If they take longer than ``seconds``, or one of them has failed and the others do not end by then.
    """
    port = _free_port()

    def run(rank: int) -> None:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
        # A fork's pool of threads is made again here, before autograd's threads ask for it.
        torch.set_num_threads(1)
        work(rank)

    children = []
    for rank in range(number):
        children.append(forked(lambda rank=rank: run(rank)))  # type: ignore[misc]
    if seconds is not None:
        _kill_after(children, seconds)
    return [status_of(child) for child in children]


def forked(work: Callable[[], object]) -> int:
    """Run a function in a forked process, and return the number of the process."""
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


def status_of(child: int) -> int:
    """Wait for the end of a process, and return its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _kill_after(children: list[int], seconds: float) -> None:
    """Wait until all processes have ended; kill those that have not by then.

    Raises:
        TimeoutError: If some have not.
    """
    until = time.monotonic() + seconds
    while not all(map(_has_ended, children)):
        if time.monotonic() > until:
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                status_of(child)
            raise TimeoutError(f"The processes did not end within {seconds:g} s.")
        time.sleep(_LOOK)


def _has_ended(child: int) -> bool:
    """Return whether a process has ended; its exit status can still be asked for."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _free_port() -> int:
    """Return a port that nobody listens to, of those that no connection is given by chance."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")
