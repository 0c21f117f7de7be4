"""Numbers of numpy are numbers: a fit with them ends as one with Python's, and its checkpoint is plain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer

from fl_lightning import (
    BernoulliSampler,
    Clip,
    DynamicWeightFedBuff,
    FedAdam,
    FedAsync,
    FedAvg,
    FedBuff,
    ImportanceSampler,
    Participation,
    RADFed,
    TensorDataModule,
    VirtualClock,
)
from fl_lightning.models import MLPClassifier
from fl_lightning.parts import Proximal
from fl_lightning.parts.asynchronous import hinge


def fit(callback: Any, rounds: int) -> L.Trainer:
    data = TensorDataModule(quadratic_clients([1.0] * 6, [float(k) for k in range(6)]), batch_size=None)
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback])
    trainer.fit(Quadratic(0.5), datamodule=data)
    return trainer


def number(kind: Any, value: Any) -> Any:
    """Return a number as Python's."""
    return value


def convert(kind: Any, value: Any) -> Any:
    """Return a number, or a list, as numpy's."""
    return kind(value)


#: Each is made of numbers of numpy, and of Python's.
MAKE: dict[str, Callable[[Any], Any]] = {
    "FedAvg": lambda n: FedAvg(
        n(np.float32, 0.29), server_lr=n(np.float32, 0.7), local_steps=n(np.int64, 2), seed=n(np.int32, 1)
    ),
    "FedAdam": lambda n: FedAdam(
        n(np.int64, 3), beta1=n(np.float32, 0.3), bias_correction=n(np.bool_, True), clients_at_once=n(np.int64, 2)
    ),
    "importance": lambda n: FedAvg(sampler=ImportanceSampler(n(np.int64, 3), gamma=n(np.float32, 0.3))),
    "bernoulli": lambda n: FedAvg(
        sampler=BernoulliSampler(n(np.float32, 0.7)), exchange=Clip(n(np.float32, 0.3)),
        max_invalid_rounds=n(np.int64, 5),
    ),
    "participation": lambda n: FedAvg(
        4, participation=Participation(available=n(np.float32, 0.7), dropout=n(np.float32, 0.3))
    ),
    "RADFed": lambda n: RADFed(n(np.int64, 2), n(np.float32, 0.7), local=Proximal(n(np.float32, 0.3))),
    "FedAsync": lambda n: FedAsync(
        n(np.int64, 3), mixing=n(np.float32, 0.3), staleness=hinge(n(np.float32, 0.2), n(np.int64, 1)),
        max_staleness=n(np.int64, 4), speeds=n(np.array, [1, 2, 3, 4, 5, 6]),
    ),
    "FedBuff": lambda n: FedBuff(
        n(np.int64, 2), n(np.int64, 3), concurrency=n(np.int64, 4), wait_for_flush=n(np.bool_, False),
        clock=VirtualClock(
            n(np.float32, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), work=n(np.int64, 10), delay=n(np.float32, 0.1),
            dropout=n(np.float32, 0.3), online={n(np.int64, 0): [(n(np.float32, 0.3), n(np.int64, 90))]},
        ),
    ),
    "DynamicWeightFedBuff": lambda n: DynamicWeightFedBuff(
        n(np.int64, 2), n(np.int64, 3), alpha=n(np.float32, 0.3), mu=n(np.float32, 0.3)
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:`max_epochs=3` is not a multiple")
@pytest.mark.parametrize("name", MAKE)
def test_numbers_of_numpy_train_alike_and_go_into_checkpoints(name: str, tmp_path: Path) -> None:
    ends = []
    for place, kind in enumerate((convert, number)):
        trainer = fit(MAKE[name](kind), rounds=3)
        trainer.save_checkpoint(tmp_path / f"{place}.ckpt")
        torch.load(tmp_path / f"{place}.ckpt", weights_only=True)
        ends.append(trainer.lightning_module.w.item())
    assert ends[0] == ends[1]


def test_hyperparameters_of_numpy_go_into_checkpoints(tmp_path: Path) -> None:
    module = MLPClassifier(np.int64(4), np.array([3]), np.int64(2), lr=np.float32(0.5))
    trainer = quiet_trainer(max_epochs=1)
    trainer.strategy.connect(module)
    trainer.save_checkpoint(tmp_path / "m.ckpt")
    saved = torch.load(tmp_path / "m.ckpt", weights_only=True)["hyper_parameters"]
    assert saved == {**saved, "in_features": 4, "hidden": [3], "num_classes": 2, "lr": 0.5}
