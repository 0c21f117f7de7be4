"""Numbers of several evaluation loaders are those of all samples, however many processes share them."""

from __future__ import annotations

from typing import Any

import torch
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FedAvg, TensorDataModule


class Distance(Quadratic):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        self.log("distance", (self.w - batch[1]).abs().mean())


class TwoSets(TensorDataModule):
    def val_dataloader(self) -> Any:
        c = torch.tensor([10.0, 20.0, 60.0, 110.0], dtype=torch.float64)
        return [super().val_dataloader(), DataLoader(TensorDataset(torch.ones_like(c), c))]


def test_two_processes_join_the_numbers_of_each_loader() -> None:
    clients = quadratic_clients([1.0, 1.0], [1.0, 1.0])
    samples = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)  # 1 and 6 on one process, 2 on the other
    data = TwoSets(clients, val=(torch.ones(3, dtype=torch.float64), samples), eval_batch_size=1)
    trainer = quiet_trainer(
        max_epochs=1, devices=2, strategy="ddp_fork", callbacks=[FedAvg(2, seed=0)], num_sanity_val_steps=-1
    )
    trainer.fit(Distance(lr=0.0), datamodule=data)  # the weight stays 0
    assert float(trainer.callback_metrics["distance/dataloader_idx_0"]) == 3.0
    assert float(trainer.callback_metrics["distance/dataloader_idx_1"]) == 50.0
