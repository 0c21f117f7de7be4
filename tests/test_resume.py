"""Two killed processes, resumed with ``ckpt_path="last"``, end with the weights of the run that was never killed."""

from __future__ import annotations

import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

from faults.forked import Forked
from faults.victims import Trials, Victim, fork_ranks, train_here
from lightning.pytorch.callbacks import Callback


class Kill(Callback):
    """Kills both processes without a chance to clean up, in the middle of a round."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        # round 4 lies in the middle of the second cycle of three
        if trainer.current_epoch == 4 and batch_idx == 3:
            os.killpg(0, signal.SIGKILL)


def test_killed_in_mid_round_and_resumed_is_bit_identical(tmp_path: Path) -> None:
    victim, folder = Victim("RADFed", devices=2), tmp_path / "broken"
    folder.mkdir()
    trials = Trials(tmp_path / "whole", random.Random(0))
    killed = Forked(partial(fork_ranks, partial(train_here, victim, folder, Kill()), 2), folder / "log")
    assert killed.wait(60.0) == -signal.SIGKILL, killed.output()
    assert not (folder / "final.pt").exists()
    assert sorted(path.name for path in folder.glob("last*")) == ["last.ckpt", "last.previous.ckpt"]
    assert trials.finish(victim, folder) is None
