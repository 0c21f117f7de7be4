"""A few faults of each kind; ``python -m tests.faults`` tries many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_a_few_faults_of_each_kind_are_survived() -> None:
    counts = {"kills": 3, "signals": 1, "ranks": 1}
    arguments = [text for name, count in counts.items() for text in (f"--{name}", str(count))]
    finished = subprocess.run(
        [sys.executable, "-m", "tests.faults", "--seed", "1", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    rows = [line.split()[-3:-1] for line in finished.stdout.splitlines()[2:] if line]
    assert [[int(number) for number in row] for row in rows] == [[count, count] for count in counts.values()]
