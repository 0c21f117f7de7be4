"""Runs functions in forked processes, which begin at once: all packages are imported already."""

from __future__ import annotations

import contextlib
import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def in_child(work: Callable[..., object], *args: Any, **kwargs: Any) -> int:
    """Run a function in a forked process and return its exit status, negative for a signal."""
    return _status(_forked(lambda: work(*args, **kwargs)))


def on_two_processes(work: Callable[[], Any], folder: Path) -> tuple[Any, Any]:
    """Run a function in two processes that find each other as torchrun's do, and return what each of them returns.

    Args:
        work: Trains with ``devices=2`` and ``strategy="ddp"``; what it returns must be readable by ``weights_only``.
        folder: For what the processes return.

    Raises:
        RuntimeError: If one of them fails; its text is that of the errors.
    """
    port = _free_port()

    def run(rank: int) -> None:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
        try:
            torch.save(work(), folder / f"rank-{rank}.pt")
        except BaseException:
            (folder / f"rank-{rank}.txt").write_text(traceback.format_exc())
            raise

    children = [_forked(lambda rank=rank: run(rank)) for rank in range(2)]
    if any([_status(child) for child in children]):
        raise RuntimeError("\n".join(path.read_text() for path in sorted(folder.glob("rank-*.txt"))))
    one, other = (torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(2))
    return one, other


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
