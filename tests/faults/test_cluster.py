"""A short campaign of what clusters do loses nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from faults.cluster import KINDS

PROJECT = Path(__file__).parents[2]


@pytest.mark.long
def test_a_few_attempts_of_each_kind_are_survived() -> None:
    # The campaign forks. In a process of its own it has no threads, and no fork server, of other tests.
    command = [sys.executable, "-m", "tests.faults.cluster"]
    for name in KINDS:
        command += [f"--{name}", "2"]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    print(ended.stdout, ended.stderr[-5000:])
    assert ended.returncode == 0
    attempts = [line.split()[-3:] for line in ended.stdout.splitlines()[1:]]
    assert attempts == [["2", "2", "0"]] * len(KINDS)
