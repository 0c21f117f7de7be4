"""Vectorised clients on two processes end with the weights, means and counters of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

TESTS = Path(__file__).parents[1]
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[3])
import torch
from lightning.pytorch.callbacks import Callback
from stacked import Module, clients_of
from toys import quiet_trainer
from torch import nn
from fl_lightning import FedAvg, FedDyn, RADFed, TensorDataModule

class Save(Callback):
    def on_train_end(self, trainer, module):
        assert trainer.fit_loop.executor.cause is None
        if trainer.is_global_zero:
            loss = float(trainer.callback_metrics["train_loss"])
            state = {"weights": module.state_dict(), "step": trainer.global_step, "loss": loss}
            torch.save(state, sys.argv[1])

if __name__ == "__main__":
    devices = int(sys.argv[2])
    algorithm = {"fedavg": FedAvg(1.0, seed=1, executor="vectorized"),
                 "radfed": RADFed(2, 5, seed=1, executor="vectorized"),
                 "feddyn": FedDyn(0.1, 5, seed=1, executor="vectorized")}[sys.argv[4]]
    torch.manual_seed(0)
    module = Module(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)))
    quiet_trainer(
        max_epochs=4, devices=devices, strategy="ddp_fork" if devices > 1 else "auto", callbacks=[algorithm, Save()]
    ).fit(module, datamodule=TensorDataModule(clients_of((6,), (8, 14, 6, 22, 10, 12)), batch_size=4))
"""


@pytest.mark.parametrize("algorithm", ["fedavg", "radfed", "feddyn"])
def test_two_processes_equal_one(algorithm: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ends: list[dict[str, Any]] = []
    for devices in (1, 2):
        path = tmp_path / f"{devices}.pt"
        command = [sys.executable, str(tmp_path / "script.py"), str(path), str(devices), str(TESTS), algorithm]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent)}
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert path.exists(), finished.stderr[-3000:]
        ends.append(torch.load(path, weights_only=True))
    assert ends[1]["step"] == ends[0]["step"]
    assert ends[1]["loss"] == pytest.approx(ends[0]["loss"], rel=1e-6)
    for key, value in ends[0]["weights"].items():
        torch.testing.assert_close(ends[1]["weights"][key], value, rtol=1e-9, atol=1e-10)
