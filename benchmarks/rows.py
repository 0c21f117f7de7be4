"""Rows of the benchmarks' tables, each measured by a process of its own, which tells its figures in a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

_MARK = "ROW "


def tell(row: dict[str, Any]) -> None:
    """Print a row for the process that asked for it, also from a forked process, whose objects are lost."""
    print(f"\n{_MARK}{json.dumps(row)}", flush=True)


def ask(script: str, arguments: Sequence[str], label: str) -> dict[str, Any] | None:
    """Run a script in another process, with one thread unless the environment says otherwise; return the row it tells.

    Args:
        script: Its file.
        arguments: Its arguments.
        label: The row's name, for the line that is printed if it tells none.
    """
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if not lines:
        print(f"{label}: failed\n{done.stderr[-2000:]}")
        return None
    row: dict[str, Any] = json.loads(lines[-1].removeprefix(_MARK))
    return row
