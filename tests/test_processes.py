"""Two processes give the weights, logged means and counters of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = """
import sys
from datetime import timedelta
import lightning as L, torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy
from fl_lightning import ClientMetrics, FedAvg, RADFed, Scaffold, TensorDataModule

class Net(L.LightningModule):
    def __init__(self, manual):
        super().__init__()
        torch.manual_seed(3)
        self.automatic_optimization = not manual
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
        self.train_acc, self.val_acc = (MulticlassAccuracy(3, average="micro") for _ in range(2))
        self.double()
    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.layers(x)
        loss = F.cross_entropy(logits, y)
        self.train_acc(logits, y)
        self.log("train_loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.log("largest", loss, on_epoch=True, on_step=False, reduce_fx="max")
        self.log("train_acc", self.train_acc, on_epoch=True, on_step=False)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss
    def validation_step(self, batch, batch_idx):
        logits = self.layers(batch[0])
        self.log("val_loss", F.cross_entropy(logits, batch[1]), on_step=True, on_epoch=True, sync_dist=True)
        self.val_acc(logits, batch[1])
        self.log("val_acc", self.val_acc)
        return {"preds": logits, "target": batch[1]}
    test_step = validation_step
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

def train(folder, callback, manual, devices):
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(n, 6, generator=generator).double(), torch.randint(0, 3, (n,), generator=generator))
        for n in (8, 14, 6, 23, 10, 12, 31)
    ]
    # 29 samples: shares of 15 and 14, which would be 3 and 2 batches of 7; and fewer samples than processes
    alone = [tuple(part[:1] for part in clients[0])]
    data = TensorDataModule(clients=clients, val=clients[2:4], test=alone, batch_size=4, eval_batch_size=7)
    trainer = L.Trainer(
        max_epochs=4, accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto", logger=False,
        callbacks=[
            callback, ClientMetrics(), ModelCheckpoint(folder, monitor="val_loss_epoch"), EarlyStopping("train_loss")
        ],
        enable_progress_bar=False, enable_model_summary=False, max_time=timedelta(hours=1),
    )
    module = Net(manual)
    trainer.fit(module, datamodule=data)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    for loop in (trainer.validate, trainer.test):
        scores = loop(module, datamodule=data, verbose=False)[0]
        metrics |= {f"{loop.__name__} {name}": value for name, value in scores.items()}
    if trainer.is_global_zero:
        best = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)["state_dict"]
        torch.save(
            {"weights": module.state_dict(), "best": best, "metrics": metrics, "step": trainer.global_step},
            f"{folder}/final.pt",
        )

if __name__ == "__main__":
    folder, devices = sys.argv[1], int(sys.argv[2])
    train(f"{folder}/manual", FedAvg(5, seed=1), True, devices)
    # clients of Scaffold stay on their processes: in some rounds one process has none
    train(f"{folder}/scaffold", Scaffold(2, seed=1), False, devices)
    train(f"{folder}/radfed", RADFed(3, 5, seed=1), False, devices)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the folders of what every fit ended with, in one process and in two."""
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
    for devices, folder in enumerate(folders, start=1):
        script = folder / "train.py"
        script.write_text(SCRIPT)
        command = [sys.executable, str(script), str(folder), str(devices)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        finished = subprocess.run(command, env=env, capture_output=True, timeout=480, check=False)
        assert finished.returncode == 0, finished.stderr.decode()
    return folders


@pytest.mark.parametrize("algorithm", ["radfed", "manual", "scaffold"])
def test_two_processes_equal_one(folders: list[Path], algorithm: str) -> None:
    one, two = (torch.load(folder / algorithm / "final.pt", weights_only=True) for folder in folders)
    for part in ("weights", "best"):
        for name, value in one[part].items():
            assert torch.allclose(value, two[part][name], rtol=0, atol=1e-10), (part, name)
    assert two["step"] == one["step"]
    assert two["metrics"].keys() == one["metrics"].keys() >= {
        "train_loss_epoch", "largest", "train_acc", "val_loss", "val_acc", "val_acc_clients", "fed/models_sent",
        "validate val_loss_epoch", "validate val_acc", "test val_loss_epoch", "test val_acc",
    }  # fmt: skip
    for name in one["metrics"]:
        if name not in ("train_loss", "train_loss_step"):  # of a step
            assert two["metrics"][name] == pytest.approx(one["metrics"][name], abs=1e-6), name
