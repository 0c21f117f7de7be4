"""Cells at work: a runner claims each by a lease, and runs it in a process of its own or in this one."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fl_lightning.experiment.cell import CellJob
from fl_lightning.experiment.claims import Claims
from fl_lightning.experiment.files import read_json_if_there
from fl_lightning.experiment.store import message_of, write_failure
from fl_lightning.settings import Count, Natural, NotNegative, Positive, check, check_fields

#: What PyTorch imports when it captures the first training step, in a quarter of a second.
_OF_CAPTURE = "torch._dynamo.backends.debugging"
#: Most cells import these modules, so the server imports them once for all.
_IMPORTED = (__name__, "fl_lightning.datamodules", "omegaconf", "pandas", "matplotlib.pyplot", _OF_CAPTURE)
#: Exit code of a worker whose cell has failed.
_FAILED = 3
#: Seconds in which a worker that is out of time writes where it is.
_LAST_WORDS = 1.0
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
        if self.devices is not None:
            has_gpus = self.engine == "local" and torch.cuda.is_available()
            if not self.devices or not has_gpus:
                raise ValueError(f"`devices` must name GPUs of this machine, got {self.devices} ({self.engine}).")
        is_limited = self.cell_timeout is not None or self.memory_limit is not None
        if self.workers == 0 and is_limited:
            raise ValueError("`cell_timeout` and `memory_limit` need `workers`: this process cannot end itself.")


class Workers:
    """The processes of a runner, each of which runs one cell. With ``workers=0`` the cells run in this process.

    Pools (pebble, loky) send functions and results back and forth. A cell needs neither: all that it finds out is in
    its files. So plain processes serve, whose end says the rest. The runner holds the claims of its cells, and its
    processes end with it.

    Args:
        options: How the cells are run; the runners of an engine other than ``"local"`` are elsewhere.

    Attributes:
        claims: The claims of the cells at work.
    """

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.claims = Claims(self._give_up)
        # An engine's runners have the workers, and this one has none.
        self._most = max(1, options.workers) if options.engine == "local" else 0
        self._at_work: dict[int, _AtWork] = {}

    def __len__(self) -> int:
        return len(self._at_work)

    def claim(self, jobs: Iterable[CellJob]) -> CellJob | None:
        """Claim the first job that nobody else has, if a worker is free for it, and return it."""
        mine = [each.job.folder for each in self._at_work.values()]
        if len(mine) == self._most:
            return None
        for job in jobs:
            if job.folder in mine:
                continue
            claim = self.claims.take(job.folder)
            if claim is None:
                continue
            if read_json_if_there(job.folder / "result.json") is None:
                return replace(job, claim=claim)
            # Another runner has just finished it.
            self.claims.release(job.folder)
        return None

    def start(self, job: CellJob) -> None:
        """Let a free worker run a claimed job; without workers, return when it has ended."""
        if not self.options.workers:
            try:
                attempt(job)
            finally:
                self.claims.release(job.folder)
            return
        number = next(number for number in range(self._most) if number not in self._at_work)
        # A Trainer that sees SLURM's variables would take its signals and its number of tasks.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        environment.setdefault("OMP_NUM_THREADS", "1")
        devices = self.options.devices
        if devices:
            environment["CUDA_VISIBLE_DEVICES"] = str(devices[number % len(devices)])
        process = _context().Process(target=_work, args=(job, self.options, environment))
        with _without_script():
            process.start()
        until = None
        if self.options.cell_timeout is not None:
            until = time.monotonic() + self.options.cell_timeout + _LAST_WORDS
        self._at_work[number] = _AtWork(job, process, until)

    def wait(self, seconds: float) -> None:
        """Wait until a process ends, or for some seconds."""
        connection.wait([each.process.sentinel for each in self._at_work.values()], seconds)

    def end(self) -> None:
        """Make room for other cells where a process has ended, or takes too long."""
        for number, each in list(self._at_work.items()):
            if each.process.exitcode is None:
                if each.until is None or time.monotonic() < each.until:
                    continue
                # A process that stands still could not end itself.
                each.process.kill()
                each.process.join()
            del self._at_work[number]
            folder = each.job.folder
            error = self._how_it_ended(each)
            if error and not each.job.is_lost() and read_json_if_there(folder / "result.json") is None:
                write_failure(folder, error)
            self.claims.release(folder)

    def _how_it_ended(self, each: _AtWork) -> str:
        """Return an error of a process that has ended, which is empty if the files of the cell say all."""
        code = each.process.exitcode
        assert code is not None
        if code in (0, _FAILED):
            return ""
        if each.until is not None and time.monotonic() >= each.until:
            limit = f"{self.options.cell_timeout:g} s (`cell_timeout`)"
            return f"TimeoutError: the cell took longer than {limit}, so it was stopped."
        how = f"ended with code {code}"
        if code < 0:
            name = signal.Signals(-code).name
            how = f"was ended by {name}"
            if name == "SIGKILL":
                how += ", maybe because the memory was full,"
        return f"The worker process {how} in the middle of the cell; see {each.job.log}."

    def close(self) -> None:
        """Kill all processes, and let others have their cells."""
        for each in self._at_work.values():
            each.process.kill()
            each.process.join()
        self.claims.close()

    def _give_up(self, folder: Path) -> None:
        for each in list(self._at_work.values()):
            if each.job.folder == folder:
                each.process.kill()


@dataclass(frozen=True)
class _AtWork:
    """A process that runs one cell. It is forked from a server that has imported everything once.

    Attributes:
        job: The order to run the cell.
        process: The process.
        until: When it takes too long, a time of this process; ``None`` for never.
    """

    job: CellJob
    process: BaseProcess
    until: float | None


def _context() -> SpawnContext | ForkServerContext:
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


def _work(job: CellJob, options: RunOptions, environment: Mapping[str, str]) -> None:
    """Run a cell in a process of its own, and end the process."""
    os.environ.clear()
    os.environ.update(environment)
    with job.log.open("ab") as log:
        # Standard output and standard error.
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
    if options.cell_timeout is not None:
        # The log then shows where the cell was, before the runner ends it.
        faulthandler.dump_traceback_later(options.cell_timeout, file=2)
    if os.name == "posix":
        # Signals are for the runner, also where a terminal or SLURM sends them to all processes.
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
    threading.Thread(target=_end_with_runner, daemon=True).start()
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    if options.memory_limit is not None:
        import resource

        size = int(options.memory_limit * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    is_finished = attempt(job)
    sys.stdout.flush()
    os._exit(0 if is_finished else _FAILED)


def _end_with_runner() -> None:
    """End this process when that of the runner has ended."""
    runner = multiprocessing.parent_process()
    assert runner is not None
    runner.join()
    os._exit(1)


def attempt(job: CellJob) -> bool:
    """Run a cell that is claimed; return whether it is finished."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        job.run()
    except (KeyboardInterrupt, SIGTERMException):
        raise
    except BaseException as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            # The Trainer makes a SystemExit of Ctrl-C, and ignores the next one.
            signal.signal(signal.SIGINT, handler)
            raise KeyboardInterrupt from error
        # If another runner runs the cell now, the cell has not failed.
        if not job.is_lost():
            write_failure(job.folder, message_of(error), traceback.format_exc())
        return False
    return True
