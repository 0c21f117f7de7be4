"""Numbers of numpy are numbers: a fit with them ends as one with Python's, and its checkpoint is plain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import Quadratic, fit_clients, quadratic_clients, quiet_trainer

from fl_lightning import FedAdam, FedAvg, FedBuff, VirtualClock
from fl_lightning.models import MLPClassifier

#: Each is made of numbers, ``n(numpy's type, value)``.
MAKE: dict[str, Callable[[Any], Any]] = {
    "FedAvg": lambda n: FedAvg(
        n(np.float32, 0.29), server_lr=n(np.float32, 0.7), local_steps=n(np.int64, 2), seed=n(np.int32, 1)
    ),
    "FedAdam": lambda n: FedAdam(
        n(np.int64, 3), beta1=n(np.float32, 0.3), bias_correction=n(np.bool_, True), clients_at_once=n(np.int64, 2)
    ),
    "FedBuff": lambda n: FedBuff(
        n(np.int64, 2), n(np.int64, 3), concurrency=n(np.int64, 4), wait_for_flush=n(np.bool_, False),
        clock=VirtualClock(
            n(np.float32, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), work=n(np.int64, 10), delay=n(np.float32, 0.1),
            dropout=n(np.float32, 0.3), online={n(np.int64, 0): [(n(np.float32, 0.3), n(np.int64, 90))]},
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MAKE)
def test_numbers_of_numpy_train_alike_and_go_into_checkpoints(name: str, tmp_path: Path) -> None:
    ends, clients = [], quadratic_clients([1.0] * 6, [float(k) for k in range(6)])
    for number in (lambda kind, value: kind(value), lambda kind, value: value):
        trainer = fit_clients(MAKE[name](number), module := Quadratic(0.5), clients, 3)
        trainer.save_checkpoint(tmp_path / "end.ckpt")
        torch.load(tmp_path / "end.ckpt", weights_only=True)
        ends.append(module.w.item())
    assert ends[0] == ends[1]


def test_hyperparameters_of_numpy_go_into_checkpoints(tmp_path: Path) -> None:
    module = MLPClassifier(np.int64(4), np.array([3]), np.int64(2), lr=np.float32(0.5))
    trainer = quiet_trainer(callbacks=[FedAvg()])  # which has not fitted
    trainer.strategy.connect(module)
    trainer.save_checkpoint(tmp_path / "m.ckpt")
    saved = torch.load(tmp_path / "m.ckpt", weights_only=True)["hyper_parameters"]
    assert saved == {**saved, "in_features": 4, "hidden": [3], "num_classes": 2, "lr": 0.5}
