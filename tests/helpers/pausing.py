"""A job of one or two forked processes, which stops at a point of its fourth round until it is told to go on."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import torch
from faults.victims import Victim, train
from lightning.pytorch.callbacks import Callback, OnExceptionCheckpoint

from helpers.forking import Forked


class Pause(Callback):
    """In round 3, tells that a point is reached, and waits there until it is told to go on."""

    def __init__(self, folder: Path, point: str) -> None:
        self.folder, self.point = folder, point

    def reached(self, trainer: Any, here: str) -> None:
        if here != self.point or trainer.sanity_checking or trainer.current_epoch != 3:
            return
        marker = self.folder / f"reached-{trainer.global_rank}"
        if marker.exists():
            return
        written = marker.with_suffix(".tmp")
        written.write_text(str(os.getpid()))
        written.replace(marker)
        with open(self.folder / f"go-{trainer.global_rank}") as pipe:  # Python runs signal handlers while it waits
            pipe.read()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            self.reached(trainer, "training")

    def on_validation_batch_start(self, trainer: Any, *args: Any) -> None:
        self.reached(trainer, "validation")

    def on_round_end(self, trainer: Any, module: Any) -> None:
        self.reached(trainer, "aggregation")

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        self.reached(trainer, "checkpointing")


class Job:
    """A job that stops at a point of its fourth round."""

    def __init__(self, folder: Path, point: str, devices: int, algorithm: str) -> None:
        folder.mkdir()
        self.folder, self.point, self.devices, self.algorithm = folder, point, devices, algorithm
        for rank in range(devices):
            os.mkfifo(folder / f"go-{rank}")

    def start(self, checkpoint: str | None = None) -> Forked:
        """Start the job, which also saves when it is broken off, or go on from a checkpoint."""
        saves = [] if checkpoint else [OnExceptionCheckpoint(self.folder)]
        paths = {"saved": self.folder / "on_exception.ckpt", "last": "last", None: None}
        options = {
            "ckpt_path": paths[checkpoint],
            "sizes": (8, 14, 6, 123, 10, 12),  # one process trains many more batches than the other
        }
        victim = Victim(self.algorithm, devices=self.devices)
        fit = partial(train, victim, self.folder, Pause(self.folder, self.point), *saves, **options)
        return Forked(fit, self.folder / "output")

    def stop(self, ranks: list[int]) -> None:
        """Ask processes to end when all are at the point, let them go on, and wait for the end of all."""
        job = self.start()
        markers = [self.folder / f"reached-{rank}" for rank in range(self.devices)]
        while not all(marker.exists() for marker in markers):
            assert job.wait(0.02) is None, job.output()
        for rank in ranks:
            os.kill(int(markers[rank].read_text()), signal.SIGTERM)
        for rank in range(self.devices):
            (self.folder / f"go-{rank}").write_text("")
        if not job.wait_for_all(120.0):
            where = job.where()
            job.kill()
            raise AssertionError(f"The processes hang: {where}")
        assert not (self.folder / "final.pt").exists() and not [*self.folder.glob("hpc*")], job.output()

    def finish(self, checkpoint: str | None = None) -> dict[str, Any]:
        """Train to the end; return the weights and the number of steps."""
        job = self.start(checkpoint)
        assert job.wait(240.0) == 0, job.output()
        return torch.load(self.folder / "final.pt", weights_only=True)
