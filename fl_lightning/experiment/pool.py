"""Runs jobs in worker processes, or in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from fl_lightning.experiment.cell import CellJob
from fl_lightning.experiment.worker import run_safely

OnRound = Callable[[str, int], None]
OnEnd = Callable[[str, dict[str, Any]], None]


class Pool:
    """Shares jobs out among worker processes; a worker runs one job at a time.

    Args:
        workers: Number of processes; 0 runs the jobs in this process, one after the other.
        logs: Folder for the output of the workers.
        devices: Numbers of GPUs; worker i gets ``devices[i % len(devices)]``. ``None``: every worker sees all GPUs.
        lock: File descriptor that the workers inherit: its file stays locked until the last worker has ended.
    """

    def __init__(self, workers: int, logs: Path, devices: Sequence[int] | None = None, lock: int | None = None) -> None:
        self.workers, self.logs, self.devices, self.lock = workers, logs, devices, lock
        self._processes: dict[int, _Process] = {}
        self._stopped = False

    def run(self, jobs: Iterable[tuple[str, CellJob]], on_round: OnRound, on_end: OnEnd) -> None:
        """Run jobs until all have ended.

        The two functions are called from several threads.

        Args:
            jobs: Pairs of a name and a job.
            on_round: Called with the name and the number of finished rounds.
            on_end: Called with the name and ``{"result": ...}`` or ``{"error": traceback}``.
        """
        if self.workers == 0:
            for name, job in jobs:
                on_end(name, run_safely(job, partial(on_round, name)))
            return
        queue: SimpleQueue[tuple[str, CellJob]] = SimpleQueue()
        for entry in jobs:
            queue.put(entry)
        with ThreadPoolExecutor(self.workers) as threads:
            serving = [threads.submit(self._serve, number, queue, on_round, on_end) for number in range(self.workers)]
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

    def _serve(self, number: int, queue: SimpleQueue[tuple[str, CellJob]], on_round: OnRound, on_end: OnEnd) -> None:
        while not self._stopped:
            try:
                name, job = queue.get_nowait()
            except Empty:
                return
            if number not in self._processes:
                self._processes[number] = _Process(
                    self.logs / f"worker-{number}.log", self._environment(number), self.lock
                )
            answer = self._processes[number].run(job, partial(on_round, name))
            if self._stopped:
                return
            if answer is None:
                code = self._processes.pop(number).close()
                log = self.logs / f"worker-{number}.log"
                answer = {"error": f"The worker process ended with code {code} in the middle of the cell; see {log}."}
            on_end(name, answer)

    def _environment(self, number: int) -> dict[str, str]:
        environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        # so that a worker can import all that this process can
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = str(self.devices[number % len(self.devices)])
        return environment


class _Process:
    """A worker process."""

    def __init__(self, log: Path, environment: dict[str, str], lock: int | None) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from fl_lightning.experiment.worker import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                encoding="utf-8",
                env=environment,
                start_new_session=True,
                pass_fds=() if lock is None else (lock,),
            )

    def run(self, job: CellJob, on_round: Callable[[int], None]) -> dict[str, Any] | None:
        """Send a job and return the answer; ``None`` if the process ends before it answers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(asdict(job)) + "\n")
            self._process.stdin.flush()
        except OSError:
            return None
        for line in self._process.stdout:
            answer: dict[str, Any] = json.loads(line)
            if "round" not in answer:
                return answer
            on_round(answer["round"])
        return None

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def close(self) -> int:
        """Close the input of the process, which ends it, and return its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait()
