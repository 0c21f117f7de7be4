"""What is trained while faults happen: every algorithm, by every executor, on one process and on two."""

from __future__ import annotations

import os
import random
import shutil
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from faults.forked import Forked
from helpers.algorithms import ALGORITHMS, Net, data
from lightning.pytorch.callbacks import Callback

from fl_lightning import FederatedCheckpoint

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
    """Saves what a fit ends with, also one that had no round left."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        if trainer.current_epoch < ROUNDS:
            return
        server = trainer.callbacks[0].algorithm.state_dict()  # on all processes: it gathers
        state = {
            "weights": module.state_dict(),
            "server": server["model"],
            "traffic": server["traffic"],
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            "step": trainer.global_step,
        }
        if trainer.is_global_zero:
            torch.save(state, self.path.with_suffix(".tmp"))
            self.path.with_suffix(".tmp").replace(self.path)


class Ready(Callback):
    """Tells that a process has met the others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        (self.folder / f"ready-{trainer.global_rank}").touch()


def train(victim: Victim, folder: Path) -> None:
    """Train seven rounds, or what is left of them; the end is in ``final.pt``."""
    os.chdir(folder)
    for rank in range(victim.devices):
        (folder / f"ready-{rank}").unlink(missing_ok=True)
    if victim.devices == 1:
        train_here(victim, folder)
        return
    fork_ranks(partial(train_here, victim, folder), victim.devices)


def fork_ranks(function: Callable[[], object], number: int) -> None:
    """Run a function in so many processes that find each other, as torchrun starts them; wait for all.

    Raises:
        RuntimeError: If one fails.
    """
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    children = [_fork_rank(function, rank) for rank in range(number)]
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(statuses):
        raise RuntimeError(f"the processes ended with {statuses}")


def _fork_rank(function: Callable[[], object], rank: int) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.environ["LOCAL_RANK"] = str(rank)
            torch.set_num_threads(1)  # a fork's pool of threads is made anew here, before autograd's threads ask for it
            function()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def free_port() -> int:
    """Return a port that nobody listens to."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def train_here(victim: Victim, folder: Path, *callbacks: Callback) -> None:
    """Train in this process."""
    trainer = L.Trainer(
        max_epochs=ROUNDS,
        accelerator="cpu",
        devices=victim.devices,
        strategy="ddp" if victim.devices > 1 else "auto",
        callbacks=[
            ALGORITHMS[victim.algorithm](seed=1, executor=victim.executor),
            FederatedCheckpoint(folder, save_top_k=0),
            SaveEnd(folder / "final.pt"),
            Ready(folder),
            *callbacks,
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Net(), datamodule=data(), ckpt_path="last")


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

    def new_folder(self) -> Path:
        """Return an empty folder."""
        self._number += 1
        folder = self.folder / str(self._number)
        folder.mkdir(parents=True)
        return folder

    def start(self, victim: Victim, folder: Path) -> Forked:
        """Start a victim, or go on with it."""
        return Forked(partial(train, victim, folder), folder / "log")

    def _whole(self, victim: Victim) -> tuple[dict[str, Any], float]:
        """Return how a victim ends that nobody harms, and after how many seconds."""
        folder, begin = self.new_folder(), time.monotonic()
        child = self.start(victim, folder)
        if child.wait(LONG) != 0:
            raise RuntimeError(f"{victim} does not train: {child.output()}")
        seconds = time.monotonic() - begin
        return torch.load(folder / "final.pt", weights_only=True), seconds

    def finish(self, victim: Victim, folder: Path) -> str | None:
        """Go on to the end; return what is wrong with it, ``None`` if it is that of the victim nobody harmed."""
        child = self.start(victim, folder)
        status = child.wait(LONG)
        if status != 0:
            child.kill()
            return (
                f"{victim}: the resumed fit {'hangs' if status is None else f'ended with {status}'}\n{child.output()}"
            )
        return differences(victim, self.whole(victim)[0], folder)

    def remove(self, folder: Path) -> None:
        """Remove the folder of a victim that is whole again."""
        shutil.rmtree(folder, ignore_errors=True)


def differences(victim: Victim, whole: dict[str, Any], folder: Path) -> str | None:
    """Return in what a victim's end differs from that of one that nobody harmed, by a single bit."""
    end = torch.load(folder / "final.pt", weights_only=True)
    other = [name for name in ("lr", "step", "traffic") if end[name] != whole[name]]
    tensors = {"server": (end["server"], whole["server"])}
    tensors |= {name: (value, whole["weights"][name]) for name, value in end["weights"].items()}
    other += [name for name, (one, two) in tensors.items() if not torch.equal(one, two)]
    return f"{victim}: {', '.join(other)} differ" if other else None
