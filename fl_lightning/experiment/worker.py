"""A process that runs cells one after the other.

The process reads one job a line from its standard input, as JSON. It answers with lines of JSON: ``{"round": 3}`` after
each round, then ``{"result": ...}`` or ``{"error": traceback}``. Output of the cells goes to its standard error. The
process ends as soon as its input ends: without a parent nobody would read its results.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TextIO

import torch

from fl_lightning.experiment.cell import CellJob, run_cell


def main() -> None:
    """Run the jobs that arrive until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin, lines), daemon=True).start()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    while True:
        _send(answers, run_safely(CellJob(**json.loads(lines.get())), lambda done: _send(answers, {"round": done})))


def run_safely(job: CellJob, on_round: Callable[[int], None]) -> dict[str, Any]:
    """Run a cell and return ``{"result": ...}``, or ``{"error": traceback}`` if it fails."""
    try:
        return {"result": run_cell(job, on_round)}
    except Exception:
        return {"error": traceback.format_exc()}


def _read(source: TextIO, lines: SimpleQueue[str]) -> None:
    for line in source:
        lines.put(line)
    os._exit(0)


def _send(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
