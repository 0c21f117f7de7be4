"""Runs pytest in forks of one warm process: PyTorch and Lightning are imported once, this library in each fork."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import lightning.pytorch  # noqa: F401
import numpy as np
import pytest
import torch
import torchmetrics  # noqa: F401


class Plugin:
    """Starts every test alike, and writes down which one runs."""

    options: tuple[str, ...] = ()

    def start(self, tree: Path) -> None:
        self.note = tree / ".last_test"
        signal.setitimer(signal.ITIMER_PROF, 300)  # of processor time, to collect the tests

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.note.write_text(nodeid)
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)


class Chosen(Plugin):
    """Runs the chosen tests, in their order, until one fails; the processor time of each is limited.

    Of a case that is no longer there, all cases of its test run.
    """

    options = ("-x",)

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        found = {item.nodeid: item for item in items}
        chosen: list[pytest.Item] = []
        for name in self.seconds:
            if name in found:
                chosen.append(found[name])
            else:
                chosen += [item for item in items if item.nodeid.split("[")[0] == name.split("[")[0]]
        items[:] = chosen

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        signal.setitimer(signal.ITIMER_PROF, 10 + 5 * self.seconds.get(nodeid, 1.0))
        super().pytest_runtest_logstart(nodeid)


@dataclass
class Work:
    """One call of pytest on some files; ``change`` is a file of the code and the text that it has meanwhile."""

    files: list[str]
    plugin: Plugin
    change: tuple[str, str] | None = None
    number: int = 0
    longest: int = 1800  # seconds: only a deadlock lasts, as processor time is limited


def in_forks(root: Path, folder: Path, works: Iterable[Work], at_once: int) -> Iterator[tuple[Work, int, str]]:
    """Run each work on a copy of the root; yield it with its exit code and the last test that began."""
    torch.set_num_threads(1)
    free = [copied(root, folder / str(index)) for index in range(at_once)]
    running: dict[int, tuple[Work, Path, float, str]] = {}
    queue = list(reversed(list(works)))
    while queue or running:
        while queue and free:
            work, tree = queue.pop(), free.pop()
            (tree / ".last_test").write_text("")
            old = (tree / work.change[0]).read_text() if work.change else ""
            if work.change:
                put(tree / work.change[0], work.change[1])
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                play(tree, work)
            running[pid] = work, tree, time.monotonic(), old
        time.sleep(0.05)
        for pid, (work, tree, start, old) in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended and time.monotonic() - start < work.longest:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # it, and what it has started
            if not ended:
                status = os.waitpid(pid, 0)[1]
            if work.change:
                put(tree / work.change[0], old)
            del running[pid]
            free.append(tree)
            yield work, os.waitstatus_to_exitcode(status), (tree / ".last_test").read_text()


def copied(root: Path, tree: Path) -> Path:
    """Copy the files that git knows or would add."""
    shutil.rmtree(tree, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=root, capture_output=True, check=True
    )
    for name in listed.stdout.decode().split("\0"):
        if name and ((root / name).is_file() or (root / name).is_symlink()):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, tree / name, follow_symlinks=False)
    return tree


def put(path: Path, text: str) -> None:
    """Write a file with a time that depends on its text: Python takes compiled code of the same time and size."""
    path.write_text(text)
    os.utime(path, (zlib.crc32(text.encode()),) * 2)


def play(tree: Path, work: Work) -> None:
    """Run pytest in a fork, and end it."""
    code = 2
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the process that forked it
        log = os.open(tree / ".log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (work.longest, work.longest))
        sys.path[:] = [str(tree), *(entry for entry in sys.path if entry not in ("", os.getcwd()))]
        os.environ["PYTHONPATH"] = str(tree)
        os.chdir(tree)
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]
        work.plugin.start(tree)
        options = ["-q", "-pno:cacheprovider", "--hypothesis-profile=ci", f"--basetemp={tree}/.temporary"]
        code = int(pytest.main([*options, *work.plugin.options, *work.files], plugins=[work.plugin]))
    finally:
        sys.stdout.flush()
        os._exit(code)
