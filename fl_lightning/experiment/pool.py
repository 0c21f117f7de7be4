"""Runs tasks in worker processes, or in this one."""

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

from fl_lightning.experiment.cell import Task
from fl_lightning.experiment.worker import run_safely

OnRound = Callable[[str, int], None]
OnEnd = Callable[[str, dict[str, Any]], None]


class Pool:
    """Runs tasks, each worker one at a time.

    Args:
        workers: Processes; 0 runs tasks in this process, one after the other.
        logs: Folder for what workers print.
        devices: GPUs, of which worker i gets number ``i % len(devices)``; ``None`` leaves all to each.
        lock: A file descriptor that workers inherit: a file locked by it stays locked until the last worker has ended.
    """

    def __init__(self, workers: int, logs: Path, devices: Sequence[int] | None = None, lock: int | None = None) -> None:
        self.workers, self.logs, self.devices, self.lock = workers, logs, devices, lock
        self._processes: dict[int, _Process] = {}
        self._stopped = False

    def run(self, tasks: Iterable[tuple[str, Task]], on_round: OnRound, on_end: OnEnd) -> None:
        """Run tasks; both callbacks get a task's name and may be called from several threads.

        Args:
            tasks: Names and tasks.
            on_round: Called with the number of finished rounds.
            on_end: Called with ``{"result": ...}`` or ``{"error": traceback}``.
        """
        if self.workers == 0:
            for name, task in tasks:
                on_end(name, run_safely(task, partial(on_round, name)))
            return
        queue: SimpleQueue[tuple[str, Task]] = SimpleQueue()
        for entry in tasks:
            queue.put(entry)
        with ThreadPoolExecutor(self.workers) as threads:
            serving = [threads.submit(self._serve, number, queue, on_round, on_end) for number in range(self.workers)]
            try:
                for future in serving:
                    future.result()
            except BaseException:  # above all Ctrl-C, which does not reach the workers
                self._stopped = True
                for process in list(self._processes.values()):
                    process.kill()
                raise

    def close(self) -> None:
        """End the workers."""
        for process in self._processes.values():
            process.close()
        self._processes = {}

    def _serve(self, number: int, queue: SimpleQueue[tuple[str, Task]], on_round: OnRound, on_end: OnEnd) -> None:
        while not self._stopped:
            try:
                name, task = queue.get_nowait()
            except Empty:
                return
            if number not in self._processes:
                self._processes[number] = _Process(
                    self.logs / f"worker-{number}.log", self._environment(number), self.lock
                )
            answer = self._processes[number].run(task, partial(on_round, name))
            if self._stopped:
                return
            if answer is None:
                code = self._processes.pop(number).close()
                log = self.logs / f"worker-{number}.log"
                answer = {"error": f"The worker process ended with code {code} in the middle of the cell; see {log}."}
            on_end(name, answer)

    def _environment(self, number: int) -> dict[str, str]:
        environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        # what the parent can import the worker can, too
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

    def run(self, task: Task, on_round: Callable[[int], None]) -> dict[str, Any] | None:
        """Return the answer to a task; ``None`` if the process ends before it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(asdict(task)) + "\n")
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
        """End the process at once."""
        self._process.kill()

    def close(self) -> int:
        """End the process and return its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait()
