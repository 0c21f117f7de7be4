"""Each of several processes stacks its own clients, however many they are."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torchmetrics import MeanMetric

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.executors import VectorizedExecutor
from fl_lightning.testing.processes import on_two_processes


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


def train() -> list[Any]:
    """Return the last weight, and what was logged."""
    # 4 steps on one process, and two clients with 2 steps each on the other, which alone has a stack
    clients = quadratic_clients([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], [4, 4, 8])
    # the check before the first round has 2 batches on one process and 1 on the other
    data = TensorDataModule(clients, val=quadratic_clients([1.0], [3.0], [3]), batch_size=2, eval_batch_size=1)
    executor, module = VectorizedExecutor(), Measured()
    trainer = quiet_trainer(
        max_epochs=1,
        num_sanity_val_steps=2,
        devices=2,
        strategy=DDPStrategy(timeout=timedelta(seconds=60)),
        callbacks=[FedAvg(3, executor=executor, seed=0)],
    )
    trainer.fit(module, datamodule=data)
    assert executor.cause is None, executor.cause
    return [float(module.w), *(float(trainer.callback_metrics[name]) for name in ("optimum_epoch", "distance"))]


def test_processes_with_unequal_numbers_of_clients_stack_them(tmp_path: Path) -> None:
    # each step halves the distance to the client's optimum
    weight = (4 * 1 * (1 - 0.5**2) + 4 * 2 * (1 - 0.5**2) + 8 * 3 * (1 - 0.5**4)) / 16
    for found in on_two_processes(train, tmp_path):
        assert found == pytest.approx([weight, (2 * 1 + 2 * 2 + 4 * 3) / 8, 3 - weight], abs=1e-6)
