"""Every algorithm gives the same weights, logs and counters when its clients are trained at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.algorithms import ALGORITHMS, Net, data
from helpers.toys import quiet_trainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from fl_lightning import AggregationCallback


class NetWithoutDropout(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers[3] = nn.Dropout(0.0)


def fit(callback: AggregationCallback, module: Any = None, **trainer: Any) -> tuple[Any, Any]:
    module = module or NetWithoutDropout()
    fitter = quiet_trainer(**{"max_epochs": 7, "callbacks": [callback], **trainer})
    fitter.fit(module, datamodule=data())
    return fitter, module


def assert_same_run(left: tuple[Any, Any], right: tuple[Any, Any]) -> None:
    for key, value in left[1].state_dict().items():
        torch.testing.assert_close(right[1].state_dict()[key], value, rtol=1e-9, atol=1e-10)
    assert right[0].global_step == left[0].global_step
    assert right[0].callback_metrics.keys() == left[0].callback_metrics.keys()
    for key, value in left[0].callback_metrics.items():
        if key != "train_loss_step":
            torch.testing.assert_close(right[0].callback_metrics[key], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_vectorized_equals_sequential(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = []
    for executor in ("sequential", "vectorized"):
        runs.append(fit(ALGORITHMS[name](seed=1, executor=executor)))
    assert runs[1][0].fit_loop.executor.cause is None
    assert_same_run(*runs)


@pytest.mark.parametrize(
    "options",
    [
        {"local_epochs": 3},
        {"local_steps": 7},
    ],
    ids=str,
)
def test_local_work(options: dict[str, Any]) -> None:
    from fl_lightning import FedAvg

    runs = [fit(FedAvg(5, seed=1, executor=executor, **options)) for executor in ("sequential", "vectorized")]
    assert runs[1][0].fit_loop.executor.cause is None
    assert_same_run(*runs)


@pytest.mark.parametrize("number", [1, 2])
def test_clients_at_once(number: int) -> None:
    from fl_lightning import FedAvg

    alone, at_once = FedAvg(5, seed=1, executor="sequential"), FedAvg(5, seed=1, clients_at_once=number)
    at_once.executor = "vectorized"
    runs = [fit(alone), fit(at_once)]
    assert runs[1][0].fit_loop.executor.cause is None
    assert_same_run(*runs)


@pytest.mark.parametrize(
    "trainer",
    [
        {"accumulate_grad_batches": 2},
        {"gradient_clip_val": 0.05},
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
        {"limit_train_batches": 2},
        {"overfit_batches": 2},
    ],
    ids=str,
)
def test_settings_of_the_trainer(trainer: dict[str, Any]) -> None:
    from fl_lightning import FedProx

    runs = [
        fit(FedProx(0.1, clients_per_round=5, seed=1, local_epochs=2, executor=executor), **trainer)
        for executor in ("sequential", "vectorized")
    ]
    assert runs[1][0].fit_loop.executor.cause is None
    assert_same_run(*runs)


def test_loggers_see_the_same_steps(tmp_path: Path) -> None:
    from fl_lightning import FedAvg

    rows = []
    for executor in ("sequential", "vectorized"):
        logger = CSVLogger(tmp_path, name=executor)
        callback = FedAvg(5, seed=1, executor=executor)
        fit(callback, logger=logger, log_every_n_steps=5)
        rows.append([(row.get("step"), row.get("val_loss")) for row in logger.experiment.metrics])
    assert [step for step, _ in rows[1]] == [step for step, _ in rows[0]]
