"""Kills inside the write of a checkpoint."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
import uuid
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from faults.forked import Forked
from fl_lightning.checked_file import CheckedFile
from helpers.toys import Quadratic, quiet_trainer

from fl_lightning import FederatedCheckpoint, RADFed, TensorDataModule

VALUES = 100_000  # of the model; with those that circulate, a checkpoint has 3 MB
ROUNDS = 6
LONG = 120.0  # seconds


class ToldCheckpoint(FederatedCheckpoint):
    """Tells when it begins to write, and when it has written."""

    def __init__(self, folder: Path, pipe: int) -> None:
        super().__init__(folder, save_top_k=0)
        self._pipe = pipe

    def _keep_last(self, trainer: Any) -> None:
        os.write(self._pipe, b"b")
        super()._keep_last(trainer)
        os.write(self._pipe, b"e")


def train(folder: Path, pipe: int, temporary: Path) -> None:
    """Train six rounds, or what is left of them, and write a checkpoint after each."""
    tempfile.tempdir = str(temporary)
    ones = torch.ones(1, VALUES, dtype=torch.float64)
    data = TensorDataModule([(ones, float(client) * ones) for client in range(4)], batch_size=None)
    module = Quadratic(0.5, [0.0] * VALUES)
    trainer = quiet_trainer(
        max_epochs=ROUNDS, callbacks=[RADFed(3, 3, seed=1), ToldCheckpoint(folder, pipe)], enable_checkpointing=True
    )
    trainer.fit(module, datamodule=data, ckpt_path="last")
    torch.save(module.w.detach(), folder / "final.pt")


class Writer:
    """Trains on several devices, and is killed while it writes.

    Args:
        devices: A folder on each device.
        rng: Draws the moments.
    """

    def __init__(self, devices: list[Path], rng: random.Random) -> None:
        self._rng = rng
        self._folders = [device / f"faults-{uuid.uuid4().hex}" for device in devices]
        for folder in self._folders:
            folder.mkdir()
        self._next = 0

    def kill_once(self) -> str | None:
        """Kill a fit inside a write; return what was lost, ``None`` if nothing was."""
        folder, other = self._two_folders()
        reading, writing = os.pipe()
        child = Forked(partial(train, folder, writing, other), folder / "log")
        os.close(writing)
        written = self._kill_inside(child, reading)
        os.close(reading)
        problem = self._lost(folder, written) or self._finish(folder, other)
        if problem is None:
            shutil.rmtree(folder)
        return problem

    def remove(self) -> None:
        """Remove all folders."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    @cached_property
    def _end(self) -> torch.Tensor:
        folder, other = self._two_folders()
        problem = self._run(folder, other)
        assert problem is None, problem
        return torch.load(folder / "final.pt", weights_only=True)

    def _two_folders(self) -> tuple[Path, Path]:
        """Return a new folder on the next device, and one for temporary files on another."""
        place, self._next = self._next, (self._next + 1) % len(self._folders)
        folder = self._folders[place] / uuid.uuid4().hex
        folder.mkdir()
        return folder, self._folders[place - 1]

    def _kill_inside(self, child: Forked, pipe: int) -> int:
        """Kill inside a random write; return how many were complete before."""
        target = self._rng.randint(2, ROUNDS)
        begin, seconds = 0.0, 0.0
        for number in range(1, target + 1):
            os.read(pipe, 1)
            begin = time.monotonic()
            if number < target:
                os.read(pipe, 1)
                seconds = time.monotonic() - begin
        time.sleep(self._rng.uniform(0.0, seconds))
        child.kill()
        return target - 1 + os.read(pipe, 1).count(b"e")

    def _lost(self, folder: Path, written: int) -> str | None:
        last = CheckedFile(folder / "last.ckpt")
        intact = last.newest_intact()
        if intact is None:
            return f"{folder}: no checkpoint is whole after {written} were written"
        epoch = int(torch.load(intact, weights_only=True)["epoch"]) + 1
        return None if epoch >= written else f"{folder}: round {epoch} is kept, {written} were written"

    def _finish(self, folder: Path, other: Path) -> str | None:
        problem = self._run(folder, other)
        if problem is None and not torch.equal(torch.load(folder / "final.pt", weights_only=True), self._end):
            return f"{folder}: the weights differ"
        left = [path.name for path in folder.iterdir() if path.suffix == ".tmp"]
        return problem or (f"{folder}: {left} are left" if left else None)

    def _run(self, folder: Path, other: Path) -> str | None:
        null = os.open(os.devnull, os.O_WRONLY)
        child = Forked(partial(train, folder, null, other), folder / "log")
        os.close(null)
        status = child.wait(LONG)
        child.kill()
        return None if status == 0 else f"{folder}: the resumed fit ended with {status}\n{child.output()}"
