"""A job that ``torchrun --max-restarts`` restarts ends as if no process had died."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from faults.restarted import VICTIM
from faults.victims import Trials, differences

TESTS = Path(__file__).parents[1]


@pytest.mark.long
def test_a_killed_process_comes_back_by_itself_and_the_job_ends_bit_identical(tmp_path: Path) -> None:
    whole, _ = Trials(tmp_path / "whole", random.Random(0)).whole(VICTIM)
    folder = tmp_path / "job"
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "3", "--monitor-interval", "0.1", "-m", "faults.restarted", str(folder)]
    # Each start gets a new store of addresses. Otherwise the restarted processes look for the dead ones.
    # The death takes one restart. Another is needed if PyTorch aborts a process at its exit, where a thread of gloo
    # still has a tensor.
    environment = {
        **os.environ,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
    }
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert finished.returncode == 0, finished.stderr[-4000:]
    assert (folder / "died").exists()
    assert differences(VICTIM, whole, folder) is None
