"""A process that runs cells one after the other.

It reads a task a line from its input, as JSON, and answers with lines of JSON: ``{"round": 3}`` while a cell is at
work, then ``{"result": ...}`` or ``{"error": traceback}``. What cells print goes to its standard error. It ends with
its input, at once: without a parent nobody would take its results.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from queue import SimpleQueue
from typing import Any, TextIO


def main() -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin, lines), daemon=True).start()

    import torch

    from fl_lightning.experiment.cell import Task

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    while True:
        _send(answers, run_safely(Task(**json.loads(lines.get())), lambda done: _send(answers, {"round": done})))


def run_safely(task: Any, on_round: Any) -> dict[str, Any]:
    """Return ``{"result": ...}`` of a cell, or ``{"error": traceback}``."""
    from fl_lightning.experiment.cell import run_cell

    try:
        return {"result": run_cell(task, on_round)}
    except Exception:
        return {"error": traceback.format_exc()}


def _read(source: TextIO, lines: SimpleQueue[str]) -> None:
    for line in source:
        lines.put(line)
    os._exit(0)


def _send(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
