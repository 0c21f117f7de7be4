"""Vectorised clients on two processes end with the weights, means and counters of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parents[1]
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[2])
import torch
from lightning.pytorch.callbacks import Callback
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from torch import nn
from fl_lightning import FedAvg, FedDyn, RADFed, TensorDataModule

class Save(Callback):
    def on_train_end(self, trainer, module):
        assert getattr(trainer.fit_loop.executor, "cause", None) is None  # "auto" has none
        if trainer.is_global_zero:
            loss = float(trainer.callback_metrics["train_loss"])
            state = {"weights": module.state_dict(), "step": trainer.global_step, "loss": loss}
            torch.save(state, trainer.ended)

def train(algorithm, devices, path, *layers):
    torch.manual_seed(0)
    module = Module(nn.Sequential(nn.Linear(6, 5), *layers, nn.Tanh(), nn.Linear(5, 3)))
    trainer = quiet_trainer(
        max_epochs=4, devices=devices, strategy="ddp_fork" if devices > 1 else "auto", callbacks=[algorithm, Save()]
    )
    trainer.ended = path
    trainer.fit(module, datamodule=TensorDataModule(clients_of((6,), (8, 14, 6, 22, 10, 12)), batch_size=4))

if __name__ == "__main__":
    make = {"fedavg": lambda: FedAvg(1.0, seed=1, executor="vectorized"),
            "radfed": lambda: RADFed(2, 5, seed=1, executor="vectorized"),
            "feddyn": lambda: FedDyn(0.1, 5, seed=1, executor="vectorized")}
    train(FedAvg(1.0, seed=1), 2, f"{sys.argv[1]}/auto-2.pt")
    for devices in (2, 1):  # a process that has trained can no longer be forked
        for name in make:
            train(make[name](), devices, f"{sys.argv[1]}/{name}-{devices}.pt", nn.BatchNorm1d(5))
"""


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of what every fit ended with."""
    folder = tmp_path_factory.mktemp("ends")
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(folder / "script.py"), str(folder), str(TESTS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent)}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0, finished.stderr[-3000:]
    (folder / "told").write_text(finished.stderr)
    return folder


def test_auto_says_that_one_process_is_often_faster_for_stacks(ends: Path) -> None:
    told = [line for line in (ends / "told").read_text().splitlines() if line.startswith('executor="auto"')]
    assert told == [
        'executor="auto": clients train up to 3 at a time, as one stack: faster here, same result. On CPUs one process '
        "is often faster than 2 for clients that are stacked; try both."
    ]


@pytest.mark.parametrize("algorithm", ["fedavg", "radfed", "feddyn"])
def test_two_processes_equal_one(algorithm: str, ends: Path) -> None:
    one, two = (torch.load(ends / f"{algorithm}-{devices}.pt", weights_only=True) for devices in (1, 2))
    assert two["step"] == one["step"]
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-6)
    for key, value in one["weights"].items():
        torch.testing.assert_close(two["weights"][key], value, rtol=1e-9, atol=1e-10)
