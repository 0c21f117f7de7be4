"""What is trained while faults happen: every algorithm, by every executor, on one process and on two."""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from helpers.algorithms import ALGORITHMS, Net, data
from helpers.forking import Forked
from lightning.pytorch.callbacks import Callback

from fl_lightning import FederatedCheckpoint
from fl_lightning.testing.processes import on_ranks

EXECUTORS = ("sequential", "vectorized", "auto")
ROUNDS = 7
LONG = 120.0  # seconds in which every victim ends, also on a busy machine


@dataclass(frozen=True)
class Victim:
    """An algorithm, an executor and a number of processes."""

    algorithm: str
    executor: str = "sequential"
    devices: int = 1

    def __str__(self) -> str:
        return f"{self.algorithm}, {self.executor}, {self.devices} process(es)"


VICTIMS = [Victim(name, executor, devices) for name in ALGORITHMS for executor in EXECUTORS for devices in (1, 2)]


class SaveEnd(Callback):
    """Tells that a process has met the others, and saves what a fit ends with, also one that had no round left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        (self.folder / f"ready-{trainer.global_rank}").touch()

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        if trainer.current_epoch < ROUNDS:
            return
        server = trainer.callbacks[0].algorithm.run.state_dict()  # on all processes: it gathers
        state = {
            "weights": module.state_dict(),
            "server": server["server"]["model"],
            "traffic": server["books"]["traffic"],
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            "step": trainer.global_step,
        }
        if trainer.is_global_zero:
            torch.save(state, self.folder / "final.tmp")
            (self.folder / "final.tmp").replace(self.folder / "final.pt")


def train(victim: Victim, folder: Path, *callbacks: Callback, **options: Any) -> None:
    """Train seven rounds, or what is left of them, on all processes; the end is in ``final.pt``."""
    os.chdir(folder)
    for path in folder.glob("ready-*"):
        path.unlink()
    if victim.devices == 1:
        train_here(victim, folder, *callbacks, **options)
    elif any(statuses := on_ranks(lambda rank: train_here(victim, folder, *callbacks, **options), victim.devices)):
        raise RuntimeError(f"the processes ended with {statuses}")


def train_here(
    victim: Victim, folder: Path, *callbacks: Callback, ckpt_path: Any = "last", sizes: Any = None, **options: Any
) -> None:
    trainer = L.Trainer(
        max_epochs=ROUNDS,
        accelerator="cpu",
        devices=victim.devices,
        strategy="ddp" if victim.devices > 1 else "auto",
        callbacks=[
            ALGORITHMS[victim.algorithm](seed=1, executor=victim.executor),
            FederatedCheckpoint(folder, save_top_k=0),
            SaveEnd(folder),
            *callbacks,
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )
    trainer.fit(Net(), datamodule=data() if sizes is None else data(sizes=sizes), ckpt_path=ckpt_path)


class Trials:
    """Folders of victims, and how those end that nobody harms.

    Args:
        folder: Where they are.
        rng: Draws what happens.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self._number = 0
        self.whole = cache(self._whole)

    def start(self, victim: Victim, *callbacks: Callback, folder: Path | None = None) -> tuple[Forked, Path]:
        """Start a victim, or go on with it in its folder."""
        if folder is None:
            self._number += 1
            folder = self.folder / str(self._number)
            folder.mkdir(parents=True)
        return Forked(partial(train, victim, folder, *callbacks), folder / "log"), folder

    def _whole(self, victim: Victim) -> tuple[dict[str, Any], float]:
        """Return how a victim ends that nobody harms, and after how many seconds."""
        begin = time.monotonic()
        child, folder = self.start(victim)
        if child.wait(LONG) != 0:
            raise RuntimeError(f"{victim} does not train: {child.output()}")
        return torch.load(folder / "final.pt", weights_only=True), time.monotonic() - begin

    def finish(self, victim: Victim, folder: Path) -> str | None:
        """Go on to the end; return what is wrong with it, ``None`` if it is that of the victim nobody harmed."""
        child, _ = self.start(victim, folder=folder)
        if (status := child.wait(LONG)) != 0:
            child.kill()
            how = "hangs" if status is None else f"ended with {status}"
            return f"{victim}: the resumed fit {how}\n{child.output()}"
        problem = differences(victim, self.whole(victim)[0], folder)
        if problem is None:
            shutil.rmtree(folder, ignore_errors=True)
        return problem


def differences(victim: Victim, whole: dict[str, Any], folder: Path) -> str | None:
    """Return in what a victim's end differs from that of one that nobody harmed, by a single bit."""
    end = torch.load(folder / "final.pt", weights_only=True)
    other = [name for name in ("lr", "step", "traffic") if end[name] != whole[name]]
    tensors = {"server": (end["server"], whole["server"])}
    tensors |= {name: (value, whole["weights"][name]) for name, value in end["weights"].items()}
    other += [name for name, (one, two) in tensors.items() if not torch.equal(one, two)]
    return f"{victim}: {', '.join(other)} differ" if other else None
