"""A cell at work: claimed by a lease, in a process of its own or in this one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from filelock import SoftFileLease, Timeout
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fl_lightning.checks import Natural, Positive, check
from fl_lightning.experiment.cell import CellJob, run_cell
from fl_lightning.experiment.files import read_json_if_there
from fl_lightning.experiment.store import CLAIM, write_failure

# by most cells, so by the server
_IMPORTED = (__name__, "fl_lightning.datamodules", "omegaconf", "pandas", "matplotlib.pyplot")
_TAKEN = 75  # exit status of a process whose cell another runner has
_starting = threading.Lock()
_OUT_OF_MEMORY = ("MemoryError", "allocate memory")  # Python's, and torch's


@dataclass(frozen=True)
class Limits:
    """What a cell may take.

    Attributes:
        cell_timeout: Seconds of an attempt; then its process is killed, and the attempt has failed.
        memory_limit: Gigabytes that a process may allocate.
        retries: Further attempts at a cell that failed, after the other cells.

    Raises:
        ValueError: If one is out of its range.
    """

    cell_timeout: float | None = None
    memory_limit: float | None = None
    retries: int = 0

    def __post_init__(self) -> None:
        check("`retries`", self.retries, Natural)
        if self.cell_timeout is not None:
            check("`cell_timeout`", self.cell_timeout, Positive)
        if self.memory_limit is not None:
            check("`memory_limit`", self.memory_limit, Positive)
            if sys.platform != "linux":
                raise ValueError(f"`memory_limit` works only on Linux, got {self.memory_limit!r}. Leave it out here.")


class CellProcess:
    """A process that runs one cell. It is forked from a server that has imported everything once.

    Pools (pebble, loky) send functions and results back and forth. A cell needs neither: all that it finds out is in
    its files. So a plain process serves, whose end says the rest.

    Args:
        job: The cell.
        limits: What it may take.
        since: When the run began, a time of the clock; see :func:`write_failure`.
        device: Number of the GPU that it sees; ``None`` for all.
    """

    def __init__(self, job: CellJob, limits: Limits, since: float, device: int | None = None) -> None:
        self.job, self.limits = job, limits
        # a Trainer that sees SLURM's variables would take its signals and its number of tasks
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        environment.setdefault("OMP_NUM_THREADS", "1")
        if device is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(device)
        self._process = _context().Process(target=_work, args=(job, limits.memory_limit, since, environment))
        with _without_script():
            self._process.start()
        self._begun = time.monotonic()

    @property
    def sentinel(self) -> int:
        """What becomes ready for :func:`multiprocessing.connection.wait` when the process ends."""
        return int(self._process.sentinel)

    def how_it_ended(self) -> str | None:
        """Return ``None`` while the process runs, else an error, which is empty if the files of the cell say all.

        A process that is out of time is killed.
        """
        timeout = self.limits.cell_timeout
        late = timeout is not None and time.monotonic() - self._begun > timeout and self._process.is_alive()
        if late:
            self.kill()
        code = self._process.exitcode
        if late:
            return f"TimeoutError: the cell took longer than {timeout:g} s (`cell_timeout`), so it was stopped."
        if code is None or code in (0, 1, _TAKEN):
            return None if code is None else ""
        signaled = code < 0 and signal.Signals(-code).name
        how = f"was ended by {signaled}" if signaled else f"ended with code {code}"
        reason = ", maybe because the memory was full," if signaled == "SIGKILL" else ""
        return f"The worker process {how}{reason} in the middle of the cell; see {self.job.log}."

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()


def _context() -> Any:
    if os.name != "posix":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    return context


@contextmanager
def _without_script() -> Iterator[None]:
    """Keep a script that has no ``if __name__ == "__main__"`` from running again in each process that starts."""
    with _starting:
        script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = script


def _work(job: CellJob, memory_limit: float | None, since: float, environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with job.log.open("ab") as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
    if os.name == "posix":  # signals are for the runner, also where a terminal or SLURM sends them to all processes
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
    threading.Thread(target=_end_with_runner, daemon=True).start()
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    if memory_limit is not None:
        import resource

        size = int(memory_limit * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    code = attempt(job, since, memory_limit, lost=lambda compromise: os._exit(_TAKEN))
    sys.stdout.flush()
    os._exit(code)


def _end_with_runner() -> None:
    runner = multiprocessing.parent_process()
    assert runner is not None
    runner.join()
    os._exit(_TAKEN)


def attempt(
    job: CellJob, since: float, memory_limit: float | None = None, lost: Callable[[Any], None] | None = None
) -> int:
    """Claim a cell and run it; return the exit status of a process that does so.

    Args:
        job: The cell.
        since: When the run began.
        memory_limit: Gigabytes that this process may allocate.
        lost: Called if another runner has taken the claim, because this process stood still.
    """
    folder = job.folder
    try:
        with SoftFileLease(folder / CLAIM, timeout=0, on_compromise=lost):
            if read_json_if_there(folder / "result.json") is not None:  # another runner has just finished it
                return 0
            handler = signal.getsignal(signal.SIGINT)
            try:
                run_cell(job)
                return 0
            except (KeyboardInterrupt, SIGTERMException):
                raise
            except BaseException as error:
                if isinstance(error.__context__, KeyboardInterrupt):
                    signal.signal(signal.SIGINT, handler)  # the Trainer makes a SystemExit of it, and ignores the next
                    raise KeyboardInterrupt from error
                text = traceback.format_exc()
                if memory_limit is not None and any(sign in text for sign in _OUT_OF_MEMORY):
                    text = f"{text.rstrip()}. OutOfMemory: a worker may take {memory_limit:g} GB (`memory_limit`)."
                write_failure(folder, text, since)
                return 1
    except Timeout:
        return _TAKEN
