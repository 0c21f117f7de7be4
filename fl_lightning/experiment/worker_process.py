"""A worker process, seen from the process that gives it jobs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from threading import Lock, Timer
from typing import Any

from fl_lightning.experiment.cell import CellJob, OnRound
from fl_lightning.experiment.damage import Note

_PATIENCE = 30.0  # seconds in which a process ends whose input has ended


class WorkerProcess:
    """A process that runs one job after the other; see :mod:`fl_lightning.experiment.worker`.

    Args:
        log: File for its output.
        environment: Its environment variables.
        timeout: Seconds of a job, and of the start of the process; then the process is killed.
        memory_limit: Gigabytes that it may allocate.
        descriptors: File descriptors that it inherits.
    """

    def __init__(
        self,
        log: Path,
        environment: dict[str, str],
        timeout: float | None = None,
        memory_limit: float | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        self.log, self.timeout = log, timeout
        self.ended = self._late = False
        log.parent.mkdir(parents=True, exist_ok=True)
        # so that it can import all that this process can
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"from fl_lightning.experiment.worker import main; main({memory_limit!r})",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                encoding="utf-8",
                env={**environment, "PYTHONPATH": path},
                start_new_session=True,
                pass_fds=tuple(descriptors),
            )

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    def run(self, job: CellJob, on_round: OnRound, note: Note) -> dict[str, Any]:
        """Send a job and return ``{"result": ...}`` or ``{"error": ...}``.

        If the process ends before it answers, :attr:`ended` is true, and the error says how it ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(job)) + "\n")
            self._process.stdin.flush()
        except OSError:
            return self._end()
        answer = self._answer(on_round, note)
        if answer is None:
            return self._end()
        self.ended = self._late  # it was killed just after it had answered
        return answer

    def _answer(self, on_round: OnRound, note: Note) -> dict[str, Any] | None:
        """Wait for the answer; ``None`` if the process ends before."""
        assert self._process.stdout is not None
        watch = _Watch(self.timeout, self._expire)
        try:
            for line in self._process.stdout:
                message: dict[str, Any] = json.loads(line)
                if "ready" in message:
                    watch.restart()  # importing packages is not the job's time
                elif "round" in message:
                    on_round(message["round"])
                elif "note" in message:
                    note(message["note"])
                else:
                    return message
        finally:
            watch.stop()
        return None

    def _expire(self) -> None:
        self._late = True
        self.kill()

    def _end(self) -> dict[str, Any]:
        self.ended = True
        code = self.close()
        if self._late:
            error = f"TimeoutError: the cell took longer than {self.timeout:g} s (`cell_timeout`), so it was stopped."
        else:
            error = f"The worker process {_how_it_ended(code)} in the middle of the cell; see {self.log}."
        return {"error": error}

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()

    def close(self) -> int:
        """Close the input of the process, which ends it, and return its exit code; a stopped process is killed."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            return self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    name = signal.Signals(-code).name
    return f"was ended by {name}" + (", maybe because the memory was full," if name == "SIGKILL" else "")


class _Watch:
    """Calls a function after some seconds, unless it is stopped; never if the seconds are ``None``."""

    def __init__(self, seconds: float | None, function: Callable[[], None]) -> None:
        self._seconds, self._function = seconds, function
        self._lock = Lock()
        self._timer: Timer | None = None
        self._turn = 0
        self.restart()

    def restart(self) -> None:
        """Begin to wait anew."""
        self.stop()
        if self._seconds is not None:
            self._timer = Timer(self._seconds, self._fire, [self._turn])
            self._timer.daemon = True
            self._timer.start()

    def stop(self) -> None:
        """Wait no more; after this the function has been called, or never will be."""
        with self._lock:
            self._turn += 1
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self, turn: int) -> None:
        with self._lock:
            if turn == self._turn:
                self._function()
