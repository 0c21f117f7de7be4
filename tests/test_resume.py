"""Two killed processes, resumed with ``ckpt_path="last"``, end with the weights of the run that was never killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch

SCRIPT = '''
import os, signal, sys
import lightning as L, torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from fl_lightning import RADFed, TensorDataModule

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("train_loss", loss, on_epoch=True)
        return loss
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self.layers(batch[0]), batch[1]))
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=7)]

class Kill(Callback):
    """Dies without a chance to clean up, in the middle of a round."""
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.current_epoch == int(os.environ["KILL_IN_ROUND"]) and batch_idx == 3:
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    folder = sys.argv[1]
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator))
        for n in (8, 14, 6, 23, 10, 12)
    ]
    data = TensorDataModule(clients=clients, val=clients[0], batch_size=4)
    trainer = L.Trainer(
        max_epochs=7, accelerator="cpu", devices=2, strategy="ddp", logger=False,
        callbacks=[RADFed(3, 4, seed=1), ModelCheckpoint(folder, monitor="val_loss", save_last=True), Kill()],
        enable_progress_bar=False, enable_model_summary=False,
    )
    module = Net()
    trainer.fit(module, datamodule=data, ckpt_path="last" if os.environ.get("RESUME") else None)
    if trainer.is_global_zero:
        lr = trainer.optimizers[0].param_groups[0]["lr"]
        state = {"weights": module.state_dict(), "lr": lr, "step": trainer.global_step, "epoch": trainer.current_epoch}
        torch.save(state, folder + "/final.pt")
'''


def run(script: Path, folder: Path, **environment: str) -> int:
    """Run the script in processes of its own and return its exit status."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(script), str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "KILL_IN_ROUND": "-1", **environment}
    finished = subprocess.run(command, env=env, capture_output=True, timeout=240, check=False)
    if finished.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(finished.stderr.decode())
    return finished.returncode


def test_killed_in_mid_round_and_resumed_is_bit_identical(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert run(script, tmp_path / "whole") == 0
    broken = tmp_path / "broken"
    # round 4 lies in the middle of the second cycle of three
    assert run(script, broken, KILL_IN_ROUND="4") == -signal.SIGKILL
    assert not (broken / "final.pt").exists()
    assert run(script, broken, RESUME="1") == 0
    whole = torch.load(tmp_path / "whole" / "final.pt", weights_only=True)
    resumed = torch.load(broken / "final.pt", weights_only=True)
    assert resumed["epoch"] == whole["epoch"] == 7
    assert resumed["step"] == whole["step"]
    assert resumed["lr"] == whole["lr"]
    for name, value in whole["weights"].items():
        assert torch.equal(value, resumed["weights"][name]), name
