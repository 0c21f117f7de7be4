"""Runs jobs in worker processes, or in this process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from fl_lightning.arguments import check_count, check_positive
from fl_lightning.experiment.cell import CellJob
from fl_lightning.experiment.lock import Lock
from fl_lightning.experiment.worker import limits_memory, run_safely
from fl_lightning.experiment.worker_process import WorkerProcess


class Listener(Protocol):
    """Hears of the jobs of a pool, from several threads."""

    def on_round(self, name: str, done: int) -> None:
        """Hear that a job has finished so many rounds."""

    def on_note(self, name: str, text: str) -> None:
        """Hear a line for the user."""

    def on_retry(self, name: str, attempt: int, error: str) -> None:
        """Hear that a job failed and will be tried again; ``attempt`` is the number of the attempt to come, from 1."""

    def on_end(self, name: str, answer: dict[str, Any]) -> None:
        """Hear of the end of a job: ``{"result": ...}`` or ``{"error": traceback}``."""


@dataclass(frozen=True)
class Limits:
    """What a job may take.

    Attributes:
        cell_timeout: Seconds of an attempt; then its process is killed, and the attempt has failed.
        memory_limit: Gigabytes that a worker process may allocate.
        retries: Further attempts at a job that failed, after the other jobs.

    Raises:
        ValueError: If one is out of its range.
    """

    cell_timeout: float | None = None
    memory_limit: float | None = None
    retries: int = 0

    def __post_init__(self) -> None:
        check_count("retries", self.retries, minimum=0)
        if self.cell_timeout is not None:
            check_positive("cell_timeout", self.cell_timeout, "It is a number of seconds.")
        if self.memory_limit is not None:
            check_positive("memory_limit", self.memory_limit, "It is a number of gigabytes.")
            if not limits_memory():
                raise ValueError(
                    f"`memory_limit` works only on Linux, got {self.memory_limit!r}. Leave it out here, and watch "
                    "the memory otherwise."
                )

    def check_workers(self, workers: int) -> None:
        """Raise ``ValueError`` if a limit needs worker processes and there are none."""
        for name in ("cell_timeout", "memory_limit"):
            if workers == 0 and getattr(self, name) is not None:
                raise ValueError(
                    f"`{name}` must be None with `workers=0`, got {getattr(self, name)!r}: the cells run in this "
                    "process, which cannot end itself. Give `workers=1`."
                )


class Pool:
    """Distributes jobs among worker processes; a worker runs one job at a time.

    Args:
        workers: Number of processes; 0 runs the jobs in this process, one after the other.
        logs: Folder for the output of the workers.
        devices: Numbers of GPUs; worker i gets ``devices[i % len(devices)]``. ``None``: every worker sees all GPUs.
        lock: Lock that the workers inherit: its folder stays locked until the last worker has ended.
        limits: What a job may take.

    Raises:
        ValueError: If a limit needs worker processes and there are none.
    """

    def __init__(
        self,
        workers: int,
        logs: Path,
        devices: Sequence[int] | None = None,
        lock: Lock | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.workers, self.logs, self.devices, self.lock = workers, logs, devices, lock
        self.limits = limits or Limits()
        self.limits.check_workers(workers)
        self._processes: dict[int, WorkerProcess] = {}
        self._stopped = False

    def run(self, jobs: Iterable[tuple[str, CellJob]], listener: Listener) -> None:
        """Run jobs, each with a name, until all have ended."""
        if self.workers == 0:
            self._run_here(jobs, listener)
            return
        queue: SimpleQueue[tuple[str, CellJob, int]] = SimpleQueue()
        for name, job in jobs:
            queue.put((name, job, 0))
        with ThreadPoolExecutor(self.workers) as threads:
            serving = [threads.submit(self._serve, number, queue, listener) for number in range(self.workers)]
            try:
                for future in serving:
                    future.result()
            except BaseException:  # mostly Ctrl-C, which does not reach the workers
                self._stopped = True
                for process in list(self._processes.values()):
                    process.kill()
                raise

    def close(self) -> None:
        """End the workers."""
        for process in self._processes.values():
            process.close()
        self._processes = {}

    def _run_here(self, jobs: Iterable[tuple[str, CellJob]], listener: Listener) -> None:
        queue = deque((name, job, 0) for name, job in jobs)
        while queue:
            name, job, failures = queue.popleft()
            answer = run_safely(job, partial(listener.on_round, name), partial(listener.on_note, name))
            if "error" in answer and failures < self.limits.retries:
                listener.on_retry(name, failures + 1, answer["error"])
                queue.append((name, job, failures + 1))
            else:
                listener.on_end(name, answer)

    def _serve(self, number: int, queue: SimpleQueue[tuple[str, CellJob, int]], listener: Listener) -> None:
        while not self._stopped:
            try:
                name, job, failures = queue.get_nowait()
            except Empty:
                return
            if number not in self._processes:
                self._processes[number] = self._start(number)
            process = self._processes[number]
            answer = process.run(job, partial(listener.on_round, name), partial(listener.on_note, name))
            if self._stopped:
                return
            again = "error" in answer and failures < self.limits.retries
            if again or process.ended:
                # a failure may leave something behind in its process, such as an error of a GPU
                self._processes.pop(number).close()
            if again:
                listener.on_retry(name, failures + 1, answer["error"])
                queue.put((name, job, failures + 1))
            else:
                listener.on_end(name, answer)

    def _start(self, number: int) -> WorkerProcess:
        process = WorkerProcess(
            self.logs / f"worker-{number}.log",
            self._environment(number),
            self.limits.cell_timeout,
            self.limits.memory_limit,
            () if self.lock is None else (self.lock.descriptor,),
        )
        if self.lock is not None:
            self.lock.add_worker(process.pid)
        return process

    def _environment(self, number: int) -> dict[str, str]:
        environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = str(self.devices[number % len(self.devices)])
        return environment
