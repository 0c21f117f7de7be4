"""Trains algorithms in forked processes: ``python -m helpers.fit_algorithms kill|processes FOLDER NAME...``."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from helpers.algorithms import ALGORITHMS, Net, data
from helpers.forking import in_child


class Kill(Callback):
    """Dies without a chance to clean up, in the middle of a round."""

    def __init__(self, in_round: int) -> None:
        self.in_round = in_round

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == self.in_round and batch_idx == 3:
            os.kill(os.getpid(), signal.SIGKILL)


class Save(Callback):
    """Saves what the fit ended with."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_end(self, trainer: Any, module: Any) -> None:
        callback = trainer.callbacks[0]
        state = {
            "weights": module.state_dict(),
            "server": callback.algorithm.state_dict()["model"],  # on all processes: it gathers
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            "step": trainer.global_step,
            "sent": callback.algorithm.models_sent,
        }
        if trainer.is_global_zero:
            torch.save(state, self.path)


def fit(name: str, folder: Path, path: Path, kill_in_round: int = -1, devices: int = 1, resume: bool = False) -> None:
    """Train seven rounds."""
    os.chdir(folder)
    callbacks = [ALGORITHMS[name](seed=1), Save(path), Kill(kill_in_round)]
    if devices == 1:
        callbacks.append(ModelCheckpoint(folder, filename="last", enable_version_counter=False))
    trainer = L.Trainer(
        max_epochs=7,
        accelerator="cpu",
        devices=devices,
        strategy="ddp_fork" if devices > 1 else "auto",
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=devices == 1,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Net(), datamodule=data(), ckpt_path=folder / "last.ckpt" if resume else None)


def train_twice(mode: str, here: Path, name: str) -> None:
    """Train an algorithm whole, and killed and resumed; or on one process, and on two."""
    for way in "ab":
        (here / way).mkdir(parents=True)
    assert in_child(fit, name, here / "a", here / "a.pt") == 0
    if mode == "processes":
        assert in_child(fit, name, here / "b", here / "b.pt", devices=2) == 0
        return
    assert in_child(fit, name, here / "b", here / "b.pt", kill_in_round=4) == -signal.SIGKILL
    assert not (here / "b.pt").exists()
    assert in_child(fit, name, here / "b", here / "b.pt", resume=True) == 0


if __name__ == "__main__":
    mode, folder, *names = sys.argv[1:]
    for name in names:
        try:
            train_twice(mode, Path(folder) / name, name)
        except AssertionError:
            traceback.print_exc()
