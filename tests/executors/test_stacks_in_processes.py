"""Each of several processes stacks its own clients, however many they are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Quadratic, quadratic_clients
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torchmetrics import MeanMetric

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.executors import VectorizedExecutor


class Measured(Quadratic):
    """Logs the mean optimum of the batches by a metric object, and the distance to it in validation."""

    def __init__(self) -> None:
        super().__init__(lr=0.5)
        self.optimum = MeanMetric()
        self.register_buffer("offset", torch.zeros(1))  # DDP's wrapper would exchange it in each batch

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        a, c = batch
        self.optimum(c.mean())
        self.log("optimum", self.optimum, on_step=True, on_epoch=True)
        return (0.5 * a * (self.w - c) ** 2).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("distance", (self.w - batch[1]).abs().mean())


class IsStacked(Callback):
    """Fails on the process whose clients are not stacked."""

    def __init__(self, executor: VectorizedExecutor) -> None:
        self.executor = executor

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert self.executor.cause is None, self.executor.cause


def test_processes_with_unequal_numbers_of_clients_stack_them() -> None:
    # 4 steps on one process, and two clients with 2 steps each on the other, which alone has a stack
    clients = quadratic_clients([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], [4, 4, 8])
    # the check before the first round has 2 batches on one process and 1 on the other
    data = TensorDataModule(clients, val=quadratic_clients([1.0], [3.0], [3]), batch_size=2, eval_batch_size=1)
    executor, module = VectorizedExecutor(), Measured()
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(start_method="spawn", timeout=timedelta(seconds=60)),
        callbacks=[FedAvg(3, executor=executor, seed=0), IsStacked(executor)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=data)
    # each step halves the distance to the client's optimum
    weight = (4 * 1 * (1 - 0.5**2) + 4 * 2 * (1 - 0.5**2) + 8 * 3 * (1 - 0.5**4)) / 16
    assert float(module.w) == pytest.approx(weight, abs=1e-12)
    assert float(trainer.callback_metrics["optimum_epoch"]) == (2 * 1 + 2 * 2 + 4 * 3) / 8
    assert float(trainer.callback_metrics["distance"]) == pytest.approx(3 - weight, abs=1e-6)
