"""Every algorithm: killed in mid-round and resumed, it ends bit-identical; on two processes, as on one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from algorithms import ALGORITHMS

SCRIPT = Path(__file__).parent / "fit_algorithms.py"


def run(mode: str, folder: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train an algorithm in both ways and return how the fits ended."""
    command = [sys.executable, str(SCRIPT), mode, str(folder), name]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, env=env, capture_output=True, timeout=240, check=False)
    assert finished.returncode == 0, finished.stderr.decode()[-4000:]
    a, b = (torch.load(folder / name / f"{way}.pt", weights_only=True) for way in "ab")
    return a, b


@pytest.mark.parametrize("name", ALGORITHMS)
def test_killed_in_mid_round_and_resumed_is_bit_identical(tmp_path: Path, name: str) -> None:
    whole, resumed = run("kill", tmp_path, name)
    for other in ("lr", "step", "sent"):
        assert resumed[other] == whole[other]
    assert torch.equal(resumed["server"], whole["server"])
    for key, value in whole["weights"].items():
        assert torch.equal(resumed["weights"][key], value), key


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_processes_equal_one(tmp_path: Path, name: str) -> None:
    one, two = run("processes", tmp_path, name)
    for other in ("lr", "step", "sent"):
        assert two[other] == one[other]
    assert torch.allclose(two["server"], one["server"], rtol=0, atol=1e-10)
    for key, value in one["weights"].items():
        assert torch.allclose(two["weights"][key].double(), value.double(), rtol=0, atol=1e-10), key
