"""A job whose second process dies once: ``torchrun ... -m faults.restarted FOLDER``."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from faults.victims import Victim, train_here
from lightning.pytorch.callbacks import Callback

VICTIM = Victim("RADFed", devices=2)


class DieOnce(Callback):
    """Kills the second process in the middle of the fifth round, the first time that it comes there."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_rank == 1 and trainer.current_epoch == 4 and batch_idx == 3 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    os.chdir(folder)
    train_here(VICTIM, folder, DieOnce(folder / "died"))
