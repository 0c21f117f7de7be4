"""Killed jobs go on from their last checkpoint, and end with the bits of one that nobody killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from faults.__main__ import main
from faults.victims import Trials, Victim, differences, train_here
from lightning.pytorch.callbacks import Callback

VICTIM, TESTS = Victim("RADFed", devices=2), Path(__file__).parents[1]


class Kill(Callback):
    """Kills processes without a chance to clean up, in the middle of the second cycle of three; all, or one once."""

    def __init__(self, once: Path | None = None) -> None:
        self.once = once

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch != 4 or batch_idx != 3:
            return
        if self.once is None:
            os.killpg(0, signal.SIGKILL)
        elif trainer.global_rank == 1 and not self.once.exists():
            self.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def test_two_killed_processes_resume(tmp_path: Path) -> None:
    trials = Trials(tmp_path, random.Random(0))
    killed, folder = trials.start(VICTIM, Kill())
    assert killed.wait(60.0) == -signal.SIGKILL, killed.output()
    assert not (folder / "final.pt").exists()
    assert sorted(path.name for path in folder.glob("last*")) == ["last.ckpt", "last.previous.ckpt"]
    assert trials.finish(VICTIM, folder) is None


@pytest.mark.long
def test_a_few_faults_of_each_kind_are_survived() -> None:
    assert main(["--seed", "1", "--kills", "3", "--signals", "1", "--ranks", "1"]) == [3, 1, 1, 0]


@pytest.mark.long
def test_a_killed_process_comes_back_by_torchrun(tmp_path: Path) -> None:
    whole, _ = Trials(tmp_path / "whole", random.Random(0)).whole(VICTIM)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "3", "--monitor-interval", "0.1", "-m", "faults.test_killed", str(tmp_path)]
    # Each start gets a new store of addresses. Otherwise the restarted processes look for the dead ones.
    # The death takes one restart. Another is needed if PyTorch aborts a process at its exit, where a thread of gloo
    # still has a tensor.
    environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert finished.returncode == 0, finished.stderr[-4000:]
    assert (tmp_path / "died").exists()
    assert differences(VICTIM, whole, tmp_path) is None


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    os.chdir(folder)
    train_here(VICTIM, folder, Kill(folder / "died"))
