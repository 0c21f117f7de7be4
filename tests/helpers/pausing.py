"""A job of one or two forked processes, which stops at a point of its fourth round until it is told to go on."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from faults.forked import Forked
from faults.victims import fork_ranks
from lightning.pytorch.callbacks import Callback, OnExceptionCheckpoint
from lightning.pytorch.plugins.environments import SLURMEnvironment
from torch import nn
from torch.nn import functional as F

from fl_lightning import FedAsync, FederatedCheckpoint, RADFed, TensorDataModule


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return F.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self.layers(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


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


ALGORITHMS = {"RADFed": lambda: RADFed(3, 4, seed=1), "FedAsync": lambda: FedAsync(clients_per_round=4, seed=1)}


def train(folder: Path, point: str, devices: int, algorithm: str, checkpoint: str | None) -> None:
    """Train six rounds; a fit that does not resume also saves when it is broken off."""
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator))
        for n in (8, 14, 6, 123, 10, 12)  # one process trains many more batches than the other
    ]
    callbacks = [ALGORITHMS[algorithm](), FederatedCheckpoint(folder, save_top_k=0), Pause(folder, point)]
    trainer = L.Trainer(
        max_epochs=6,
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        logger=False,
        plugins=[SLURMEnvironment()] if "SLURM_JOB_ID" in os.environ else None,
        default_root_dir=folder,
        callbacks=callbacks if checkpoint else [*callbacks, OnExceptionCheckpoint(folder)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Net()
    paths = {"saved": folder / "on_exception.ckpt", "last": "last", None: None}
    trainer.fit(module, datamodule=TensorDataModule(clients, val=clients[0], batch_size=4), ckpt_path=paths[checkpoint])
    if trainer.is_global_zero:
        torch.save({"weights": module.state_dict(), "step": trainer.global_step}, folder / "final.pt")


class Job:
    """A job that stops at a point of its fourth round."""

    def __init__(self, folder: Path, point: str, devices: int, algorithm: str) -> None:
        folder.mkdir()
        self.folder, self.point, self.devices, self.algorithm = folder, point, devices, algorithm
        for rank in range(devices):
            os.mkfifo(folder / f"go-{rank}")

    def start(self, checkpoint: str | None = None) -> Forked:
        """Start the job, or go on from a checkpoint."""
        fit = partial(train, self.folder, self.point, self.devices, self.algorithm, checkpoint)
        return Forked(fit if self.devices == 1 else partial(fork_ranks, fit, self.devices), self.folder / "output")

    def stop(self, ranks: list[int], signum: int = signal.SIGTERM) -> None:
        """Signal processes when all are at the point, let them go on, and wait for the end of all."""
        job = self.start()
        markers = [self.folder / f"reached-{rank}" for rank in range(self.devices)]
        while not all(marker.exists() for marker in markers):
            assert job.wait(0.02) is None, job.output()
        for rank in ranks:
            os.kill(int(markers[rank].read_text()), signum)
        for rank in range(self.devices):
            (self.folder / f"go-{rank}").write_text("")
        if not job.wait_for_all(120.0):
            where = job.where()
            job.kill()
            raise AssertionError(f"The processes hang: {where}")
        assert not (self.folder / "final.pt").exists(), job.output()

    def finish(self, checkpoint: str | None = None) -> dict[str, Any]:
        """Train to the end; return the weights and the number of steps."""
        job = self.start(checkpoint)
        assert job.wait(240.0) == 0, job.output()
        return torch.load(self.folder / "final.pt", weights_only=True)
