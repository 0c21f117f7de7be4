"""A job that is asked to stop ends on all processes, at a round's start, and goes on from there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = '''
import os, sys
from pathlib import Path
import lightning as L, torch
from lightning.pytorch.callbacks import Callback, OnExceptionCheckpoint
from lightning.pytorch.plugins.environments import SLURMEnvironment
from torch import nn
from torch.nn import functional as F
from fl_lightning import FedAsync, FederatedCheckpoint, RADFed, TensorDataModule

folder, point, devices, algorithm = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.layers(batch[0]), batch[1])
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self.layers(batch[0]), batch[1]), sync_dist=True)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

class Pause(Callback):
    """In round 3, tells that a point is reached, and waits there until it is told to go on."""
    def reached(self, trainer, here):
        if here != point or trainer.sanity_checking or trainer.current_epoch != 3:
            return
        marker = folder / f"reached-{trainer.global_rank}"
        if marker.exists():
            return
        written = marker.with_suffix(".tmp")
        written.write_text(str(os.getpid()))
        written.replace(marker)
        with open(folder / f"go-{trainer.global_rank}") as pipe:  # Python runs signal handlers while it waits
            pipe.read()
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if batch_idx == 1:
            self.reached(trainer, "training")
    def on_validation_batch_start(self, trainer, *args):
        self.reached(trainer, "validation")
    def on_round_end(self, trainer, module):
        self.reached(trainer, "aggregation")
    def on_save_checkpoint(self, trainer, module, checkpoint):
        self.reached(trainer, "checkpointing")

if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator))
        for n in (8, 14, 6, 123, 10, 12)  # one process trains many more batches than the other
    ]
    data = TensorDataModule(clients=clients, val=clients[0], batch_size=4)
    make = {"RADFed": lambda: RADFed(3, 4, seed=1), "FedAsync": lambda: FedAsync(clients_per_round=4, seed=1)}
    resume = sys.argv[5:]
    callbacks = [make[algorithm](), FederatedCheckpoint(folder, save_top_k=0), Pause()]
    slurm = "SLURM_JOB_ID" in os.environ
    names = {"saved": folder / "on_exception.ckpt", "last": "last"}
    trainer = L.Trainer(
        max_epochs=6, accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto", logger=False,
        plugins=[SLURMEnvironment()] if slurm else None, default_root_dir=folder,
        callbacks=callbacks if resume else [*callbacks, OnExceptionCheckpoint(folder)],
        enable_progress_bar=False, enable_model_summary=False,
    )
    module = Net()
    trainer.fit(module, datamodule=data, ckpt_path=names[resume[0]] if resume else None)
    if trainer.is_global_zero:
        torch.save({"weights": module.state_dict(), "step": trainer.global_step}, folder / "final.pt")
'''


class Job:
    """A job of one or two processes, which stops at a point of its fourth round."""

    def __init__(self, folder: Path, point: str, devices: int, algorithm: str) -> None:
        folder.mkdir()
        self.folder, self.devices = folder, devices
        self.arguments = [str(folder), point, str(devices), algorithm]
        (folder / "train.py").write_text(SCRIPT)
        for rank in range(devices):
            os.mkfifo(folder / f"go-{rank}")

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(self.folder / "train.py"), *self.arguments, *more]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self.folder / "output").open("wb") as output:
            return subprocess.Popen(command, env=env, stdout=output, stderr=output)

    def output(self) -> str:
        return (self.folder / "output").read_text()

    def stop(self, ranks: list[int], signum: int = signal.SIGTERM) -> None:
        """Signal processes when all are at the point, let them go on, and wait for the end of all."""
        process = self.start()
        markers = [self.folder / f"reached-{rank}" for rank in range(self.devices)]
        while not all(marker.exists() for marker in markers):
            assert process.poll() is None, self.output()
            time.sleep(0.02)
        for rank in ranks:
            os.kill(int(markers[rank].read_text()), signum)
        for rank in range(self.devices):
            (self.folder / f"go-{rank}").write_text("")
        try:
            process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"The processes hang: {self.output()}") from None
        assert not (self.folder / "final.pt").exists(), self.output()

    def finish(self, *more: str) -> dict[str, Any]:
        process = self.start(*more)
        assert process.wait(timeout=240) == 0, self.output()
        return torch.load(self.folder / "final.pt", weights_only=True)


def check_resumed(tmp_path: Path, job: Job, checkpoint: str = "saved") -> None:
    """Resume a stopped job from what it saved last or when it stopped; compare it with one that was never stopped."""
    _, _, devices, algorithm = job.arguments
    whole, resumed = Job(tmp_path / "whole", "nowhere", int(devices), algorithm).finish(), job.finish(checkpoint)
    assert resumed["step"] == whole["step"]
    for name, value in whole["weights"].items():
        assert torch.equal(value, resumed["weights"][name]), name


POINTS = ("training", "validation", "aggregation", "checkpointing")


def combinations(others: Sequence[Any], usual: Sequence[tuple[str, Any]]) -> list[Any]:
    """Return all points with each of the others; only the usual ones run without ``-m long``."""
    pairs = [(point, other) for point in POINTS for other in others]
    return [pytest.param(*pair, marks=() if pair in usual else pytest.mark.long, id=str(pair)) for pair in pairs]


@pytest.mark.parametrize(
    ("point", "ranks"), combinations(([0], [1], [0, 1]), usual=(("training", [1]), ("validation", [0, 1])))
)
def test_two_processes_end_together(tmp_path: Path, point: str, ranks: list[int]) -> None:
    job = Job(tmp_path / "job", point, 2, "RADFed")
    job.stop(ranks)
    assert (job.folder / "on_exception.ckpt").exists()
    if ranks != [0, 1]:
        check_resumed(tmp_path, job, "last" if ranks == [0] else "saved")


@pytest.mark.parametrize(
    ("point", "algorithm"),
    combinations(("RADFed", "FedAsync"), usual=(("training", "RADFed"), ("aggregation", "FedAsync"))),
)
def test_one_process_ends(tmp_path: Path, point: str, algorithm: str) -> None:
    job = Job(tmp_path / "job", point, 1, algorithm)
    job.stop([0])
    check_resumed(tmp_path, job)


def test_slurm_saves_a_rounds_boundary_and_queues_the_job_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path / "job", "aggregation", 1, "RADFed")
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/requeued\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    job.stop([0], signal.SIGUSR1)
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    assert (job.folder / "hpc_ckpt_1.ckpt").exists()
