"""Cells at work: a runner claims each by a lease, and runs it in a process of its own or in this one."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from filelock import SoftFileLease, Timeout
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fl_lightning.checks import Count, Natural, NotNegative, Positive, check, check_fields
from fl_lightning.experiment.cell import CellJob
from fl_lightning.experiment.files import read_json_if_there
from fl_lightning.experiment.store import CLAIM, message_of, write_failure

# by most cells, so by the server
_IMPORTED = (__name__, "fl_lightning.datamodules", "omegaconf", "pandas", "matplotlib.pyplot")
_OUT_OF_TIME, _FAILED = 1, 3  # exit codes of a worker: the first is that of faulthandler
_starting = threading.Lock()


@dataclass(frozen=True)
class RunOptions:
    """How a table is run; :func:`~fl_lightning.experiment.run_table` describes each option.

    Raises:
        TypeError: If one is of another kind.
        ValueError: If one is out of its range, or they exclude each other.
    """

    workers: Natural = 1
    devices: Sequence[Natural] | None = None
    checkpoint_seconds: NotNegative = 60.0
    cell_timeout: Positive | None = None
    retries: Natural = 0
    memory_limit: Positive | None = None
    engine: Literal["local", "slurm", "ray"] = "local"
    engine_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.engine != "local":
            check("`workers`", self.workers, Count)
        elif self.engine_options:
            raise ValueError(f"`engine_options` need another `engine` than 'local', got {dict(self.engine_options)!r}.")
        if self.devices is not None and (self.engine != "local" or not self.devices or not torch.cuda.is_available()):
            raise ValueError(f"`devices` must name GPUs of this machine, got {self.devices} ({self.engine}).")
        if self.workers == 0 and (self.cell_timeout is not None or self.memory_limit is not None):
            raise ValueError("`cell_timeout` and `memory_limit` need `workers`: this process cannot end itself.")


class Workers:
    """The processes of a runner, each of which runs one cell. With ``workers=0`` the cells run in this process.

    Pools (pebble, loky) send functions and results back and forth. A cell needs neither: all that it finds out is in
    its files. So plain processes serve, whose end says the rest. The runner holds the claims of its cells, and its
    processes end with it.

    Args:
        options: How the cells are run; the runners of an engine other than ``"local"`` are elsewhere.
        since: When the run began, a time of the clock; see :func:`write_failure`.
    """

    def __init__(self, options: RunOptions, since: float) -> None:
        self.options, self.since = options, since
        self._most = max(1, options.workers) if options.engine == "local" else 0
        self._at_work: dict[int, _AtWork] = {}
        self._leases: dict[Path, SoftFileLease] = {}  # each is looked at for a while until it is known to be stale

    def __len__(self) -> int:
        return len(self._at_work)

    def claim(self, jobs: Iterable[CellJob]) -> CellJob | None:
        """Claim the first job that nobody else has, if a worker is free for it, and return it."""
        mine = [each.job.folder for each in self._at_work.values()]
        free = (job for job in jobs if job.folder not in mine and self._acquire(job.folder))
        return next(free, None) if len(mine) < self._most else None

    def _acquire(self, folder: Path) -> bool:
        folder.mkdir(parents=True, exist_ok=True)
        if folder not in self._leases:  # another runner takes the claim of one that stands still
            claim = SoftFileLease(folder / CLAIM, timeout=0, on_compromise=lambda lost: self._give_up(folder))
            self._leases[folder] = claim
        try:
            self._leases[folder].acquire()
        except Timeout:
            return False
        if read_json_if_there(folder / "result.json") is not None:  # another runner has just finished it
            self._leases[folder].release()
            return False
        return True

    def start(self, job: CellJob) -> None:
        """Let a free worker run a claimed job; without workers, return when it has ended."""
        if not self.options.workers:
            try:
                attempt(job, self.since)
            finally:
                self._leases[job.folder].release()
            return
        number = next(number for number in range(self._most) if number not in self._at_work)
        # a Trainer that sees SLURM's variables would take its signals and its number of tasks
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        environment.setdefault("OMP_NUM_THREADS", "1")
        if devices := self.options.devices:
            environment["CUDA_VISIBLE_DEVICES"] = str(devices[number % len(devices)])
        process = _context().Process(target=_work, args=(job, self.options, self.since, environment))
        with _without_script():
            process.start()
        self._at_work[number] = _AtWork(job, process)

    def wait(self, seconds: float) -> None:
        """Wait until a process ends, or for some seconds."""
        connection.wait([each.process.sentinel for each in self._at_work.values()], seconds)

    def end(self) -> None:
        """Make room for other cells where a process has ended."""
        for number, each in list(self._at_work.items()):
            if each.process.exitcode is None:
                continue
            del self._at_work[number]
            error, folder = self._how_it_ended(each), each.job.folder
            lease = self._leases[folder]
            if error and lease.compromise is None and read_json_if_there(folder / "result.json") is None:
                write_failure(folder, error, self.since)
            lease.release()

    def _how_it_ended(self, each: _AtWork) -> str:
        """Return an error of a process that has ended, which is empty if the files of the cell say all."""
        code, limit = each.process.exitcode, self.options.cell_timeout
        if code in (0, _FAILED):
            return ""
        if code == _OUT_OF_TIME and limit is not None:
            return f"TimeoutError: the cell took longer than {limit:g} s (`cell_timeout`), so it was stopped."
        signaled = code < 0 and signal.Signals(-code).name
        how = f"was ended by {signaled}" if signaled else f"ended with code {code}"
        reason = ", maybe because the memory was full," if signaled == "SIGKILL" else ""
        return f"The worker process {how}{reason} in the middle of the cell; see {each.job.log}."

    def kill(self) -> None:
        """Kill all processes."""
        for each in self._at_work.values():
            each.process.kill()
            each.process.join()
            self._leases[each.job.folder].release()

    def _give_up(self, folder: Path) -> None:
        for each in list(self._at_work.values()):
            if each.job.folder == folder:
                each.process.kill()


@dataclass(frozen=True)
class _AtWork:
    """A process that runs one cell. It is forked from a server that has imported everything once."""

    job: CellJob
    process: Any


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


def _work(job: CellJob, options: RunOptions, since: float, environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with job.log.open("ab") as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
    if options.cell_timeout is not None:  # without the interpreter's lock; the log then shows where the cell was
        faulthandler.dump_traceback_later(options.cell_timeout, exit=True, file=2)
    if os.name == "posix":  # signals are for the runner, also where a terminal or SLURM sends them to all processes
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
    threading.Thread(target=_end_with_runner, daemon=True).start()
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    if options.memory_limit is not None:
        import resource

        size = int(options.memory_limit * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    is_finished = attempt(job, since)
    sys.stdout.flush()
    os._exit(0 if is_finished else _FAILED)


def _end_with_runner() -> None:
    runner = multiprocessing.parent_process()
    assert runner is not None
    runner.join()
    os._exit(1)


def attempt(job: CellJob, since: float) -> bool:
    """Run a cell that is claimed; return whether it is finished."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        job.run()
    except (KeyboardInterrupt, SIGTERMException):
        raise
    except BaseException as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            signal.signal(signal.SIGINT, handler)  # the Trainer makes a SystemExit of it, and ignores the next
            raise KeyboardInterrupt from error
        write_failure(job.folder, message_of(error), since, traceback.format_exc())
        return False
    return True
