"""A process that runs cells one after the other.

The process first writes ``{"ready": true}``. Then it reads one job a line from its standard input, as JSON. It answers
with lines of JSON: ``{"round": 3}`` after each round, ``{"note": text}`` for a line that the user shall see, then
``{"result": ...}`` or ``{"error": traceback}``. Output of the cells goes to its standard error. The process ends as
soon as its input ends: without a parent nobody would read its results.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from queue import SimpleQueue
from typing import Any, TextIO

import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fl_lightning.experiment.cell import CellJob, OnRound, run_cell
from fl_lightning.experiment.damage import Note

_OUT_OF_MEMORY = ("MemoryError", "allocate memory")  # Python's, and torch's


def main(memory_limit: float | None = None) -> None:
    """Run the jobs that arrive until the input ends.

    Args:
        memory_limit: Gigabytes that this process may allocate; no limit if ``None``.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin, lines), daemon=True).start()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if memory_limit is not None:
        limit_memory(memory_limit)
    _send(answers, {"ready": True})
    while True:
        job = CellJob(**json.loads(lines.get()))
        try:
            answer = run_safely(
                job, lambda done: _send(answers, {"round": done}), lambda text: _send(answers, {"note": text})
            )
        except SIGTERMException:  # which would end the process with status 0
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        if memory_limit is not None and any(sign in answer.get("error", "") for sign in _OUT_OF_MEMORY):
            reason = f"OutOfMemory: a worker may take {memory_limit:g} GB (`memory_limit`)."
            answer["error"] = f"{answer['error'].rstrip()}. {reason}"
        _send(answers, answer)


def run_safely(job: CellJob, on_round: OnRound, note: Note = lambda text: None) -> dict[str, Any]:
    """Run a cell and return ``{"result": ...}``, or ``{"error": traceback}`` if it fails.

    Ctrl-C and a request to terminate are passed on.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        return {"result": run_cell(job, on_round, note)}
    except (KeyboardInterrupt, SIGTERMException):
        raise
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # the Trainer makes this of Ctrl-C, and ignores the next
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, handler)
            raise KeyboardInterrupt from error
        return {"error": traceback.format_exc()}
    except Exception:
        return {"error": traceback.format_exc()}


def limits_memory() -> bool:
    """Whether this system lets a process limit its memory."""
    return sys.platform == "linux"


def limit_memory(gigabytes: float) -> None:
    """Let this process allocate no more than so much memory, of which mapped files and GPUs are no part."""
    import resource

    size = int(gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def _read(source: TextIO, lines: SimpleQueue[str]) -> None:
    for line in source:
        lines.put(line)
    os._exit(0)


def _send(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
