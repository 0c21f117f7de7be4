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
    FedAvgM,
    FedBuff,
    FedDyn,
    FedProx,
    ImportanceSampler,
    Participation,
    RADFed,
    Scaffold,
    TensorDataModule,
    UniformSampler,
    VirtualClock,
)
from fl_lightning.models import (
    MLPClassifier,
)
from fl_lightning.parts.asynchronous import hinge


def fit(callback: Any, *others: Any, rounds: int = 2, clients: int = 6) -> L.Trainer:
    data = TensorDataModule(quadratic_clients([1.0] * clients, [float(k) for k in range(clients)]), batch_size=None)
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback, *others])
    trainer.fit(Quadratic(0.5), datamodule=data)
    return trainer


NUMPY: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "FedAvg": (
        lambda: FedAvg(np.float32(0.5), server_lr=np.float32(0.5), local_epochs=np.int64(2), seed=np.int32(1)),
        lambda: FedAvg(0.5, server_lr=0.5, local_epochs=2, seed=1),
    ),
    "FedAvg-options": (
        lambda: FedAvg(
            np.int64(3), local_steps=np.int64(2), max_invalid_rounds=np.int64(5), clients_at_once=np.int64(2)
        ),
        lambda: FedAvg(3, local_steps=2, max_invalid_rounds=5, clients_at_once=2),
    ),
    "FedProx": (lambda: FedProx(np.float32(0.25), np.int64(3)), lambda: FedProx(0.25, 3)),
    "FedDyn": (lambda: FedDyn(np.float32(0.25), np.int64(3)), lambda: FedDyn(0.25, 3)),
    "Scaffold": (lambda: Scaffold(np.int64(3), option=np.int64(1)), lambda: Scaffold(3, option=1)),
    "FedAvgM": (lambda: FedAvgM(np.float32(0.5), np.int64(3)), lambda: FedAvgM(0.5, 3)),
    "FedAdam": (
        lambda: FedAdam(np.int64(3), beta1=np.float32(0.5), tau=np.float32(0.5), bias_correction=np.True_),
        lambda: FedAdam(3, beta1=0.5, tau=0.5, bias_correction=True),
    ),
    "RADFed": (lambda: RADFed(np.int64(2), np.float32(0.5)), lambda: RADFed(2, 0.5)),
    "importance": (
        lambda: FedAvg(sampler=ImportanceSampler(np.int64(3), gamma=np.float32(0.5), floor=np.float32(0.25))),
        lambda: FedAvg(sampler=ImportanceSampler(3, gamma=0.5, floor=0.25)),
    ),
    "bernoulli": (
        lambda: FedAvg(sampler=BernoulliSampler(np.float32(0.5)), exchange=Clip(np.float32(0.5))),
        lambda: FedAvg(sampler=BernoulliSampler(0.5), exchange=Clip(0.5)),
    ),
    "participation": (
        lambda: FedAvg(
            4,
            participation=Participation(
                available=np.float32(0.75),
                dropout=np.float32(0.25),
                stragglers=np.float32(0.5),
                drop_stragglers=np.True_,
            ),
        ),
        lambda: FedAvg(
            4, participation=Participation(available=0.75, dropout=0.25, stragglers=0.5, drop_stragglers=True)
        ),
    ),
    "FedAsync": (
        lambda: FedAsync(
            np.int64(3), mixing=np.float32(0.5), rho=np.float32(0.25), max_staleness=np.int64(4), speeds=np.arange(1, 7)
        ),
        lambda: FedAsync(3, mixing=0.5, rho=0.25, max_staleness=4, speeds=[1, 2, 3, 4, 5, 6]),
    ),
    "FedAsync-history": (
        lambda: FedAsync(np.int64(3), staleness=hinge(np.float32(2), np.int64(1)), history=np.int64(4)),
        lambda: FedAsync(3, staleness=hinge(2.0, 1), history=4),
    ),
    "FedBuff": (
        lambda: FedBuff(
            np.int64(2),
            np.int64(3),
            clock=VirtualClock(
                np.float32([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
                work=np.int64(10),
                delay=np.float32(0.1),
                jitter=np.float32(0.25),
                dropout=np.float32(0.25),
                online={np.int64(0): [(np.float32(0.5), np.int64(90))]},
                seed=np.int64(2),
            ),
            concurrency=np.int64(4),
            wait_for_flush=np.False_,
            broadcast_threshold=np.float32(0.5),
            average_staleness=np.float32(0.5),
        ),
        lambda: FedBuff(
            2,
            3,
            clock=VirtualClock(
                [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
                work=10,
                delay=0.1,
                jitter=0.25,
                dropout=0.25,
                online={0: [(0.5, 90)]},
                seed=2,
            ),
            concurrency=4,
            wait_for_flush=False,
            broadcast_threshold=0.5,
            average_staleness=0.5,
        ),
    ),
    "DynamicWeightFedBuff": (
        lambda: DynamicWeightFedBuff(np.int64(2), np.int64(3), alpha=np.float32(0.5), mu=np.float32(0.25)),
        lambda: DynamicWeightFedBuff(2, 3, alpha=0.5, mu=0.25),
    ),
}


@pytest.mark.filterwarnings("ignore:`max_epochs=3` is not a multiple")
@pytest.mark.parametrize("name", NUMPY)
def test_numbers_of_numpy_train_alike_and_go_into_checkpoints(name: str, tmp_path: Path) -> None:
    ends = []
    for place, make in enumerate(NUMPY[name]):
        trainer = fit(make(), rounds=3)
        trainer.save_checkpoint(tmp_path / f"{place}.ckpt")
        torch.load(tmp_path / f"{place}.ckpt", weights_only=True)
        ends.append(trainer.lightning_module.w.item())
    assert ends[0] == ends[1]


def test_a_fraction_of_float32_is_as_it_is_written() -> None:
    for rounding in ("floor", "ceil"):
        sampler = UniformSampler(np.float32(0.29), rounding)
        assert sampler.cohort_size(100) == 29


def test_hyperparameters_of_numpy_go_into_checkpoints(tmp_path: Path) -> None:
    module = MLPClassifier(np.int64(4), np.array([3]), np.int64(2), lr=np.float32(0.5))
    trainer = quiet_trainer(max_epochs=1)
    trainer.strategy.connect(module)
    trainer.save_checkpoint(tmp_path / "m.ckpt")
    saved = torch.load(tmp_path / "m.ckpt", weights_only=True)["hyper_parameters"]
    assert saved == {**saved, "in_features": 4, "hidden": [3], "num_classes": 2, "lr": 0.5}
