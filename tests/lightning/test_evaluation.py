"""Evaluations by two processes: limits leave the same samples as with one, and several loaders their own numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MaxMetric

from fl_lightning import ClientMetrics, FedAvg, TensorDataModule
from fl_lightning.testing.processes import on_two_processes

# 31 evaluation samples, whose only feature is their place: 5 batches of 7
PLACES = torch.arange(31.0).reshape(31, 1)
CLIENTS = [(x, torch.zeros(len(x), dtype=torch.long)) for x in PLACES.split([9, 1, 15, 6])]


class MeanPlace(Quadratic):
    """Logs the mean place of the samples, and their number."""

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        self.log("place", batch[0].mean())
        self.log("number", float(len(batch[0])), on_epoch=True, reduce_fx="sum")
        self.log("first", batch[0].min(), reduce_fx="min")
        self.log("last", batch[0].max(), reduce_fx="max")
        return {"preds": batch[0], "target": batch[1]}

    test_step = validation_step


def evaluate(stage: str, devices: int = 1, eval_batch_size: int = 7, **limits: Any) -> dict[str, float]:
    """Return what an evaluation by itself, or the one in a fit, logs."""
    metrics = ClientMetrics(metric=lambda preds, target: preds.mean(), name="place")
    data = TensorDataModule(clients=CLIENTS[:2], val=CLIENTS, test=CLIENTS, eval_batch_size=eval_batch_size)
    options = {"devices": devices, "strategy": "ddp" if devices > 1 else "auto", **limits}
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(2, seed=1), metrics], **options)
    getattr(trainer, stage)(MeanPlace(0.1), datamodule=data, **({} if stage == "fit" else {"verbose": False}))
    key = "test" if stage == "test" else "val"
    logged = {"mean": "", "least": "_min", "most": "_max", "all": "_weighted"}
    names = {name: f"{key}_place_clients{end}" for name, end in logged.items()}
    names |= {name: name for name in ("number", "place", "first", "last")}
    return {name: float(trainer.callback_metrics[of_log]) for name, of_log in names.items()}


LIMITS: list[tuple[str, dict[str, Any]]] = [
    ("validate", {"limit_val_batches": 0.5}),  # 2.5 of 5 batches, rounded down
    ("fit", {"overfit_batches": 2}),
    ("validate", {"limit_val_batches": 2}),
    ("test", {"limit_test_batches": 2}),
    ("test", {"limit_test_batches": 0.4}),
    ("fit", {"limit_val_batches": 2, "num_sanity_val_steps": 2}),
    ("fit", {"fast_dev_run": 2}),
]
# places 0 to 13: 0 to 8 of the first client, mean 4; 9, which the second of two processes has; 10 to 13, mean 11.5
EXPECTED = {"number": 14, "place": 6.5, "first": 0, "last": 13, "mean": 24.5 / 3, "least": 4, "most": 11.5, "all": 6.5}


@pytest.mark.parametrize(("stage", "limits"), LIMITS)
def test_a_limit_leaves_the_first_batches_of_all_samples(stage: str, limits: dict[str, Any]) -> None:
    assert evaluate(stage, **limits) == pytest.approx(EXPECTED)


def test_a_limit_of_less_than_a_batch_of_all_samples_is_an_error() -> None:
    with pytest.raises(Exception, match=r"0\.1 \* 5 < 1"):
        evaluate("validate", limit_val_batches=0.1)


# ---- two processes ----


def limited() -> list[float]:
    """Return the samples of an evaluation with a limit, of one without, and of one with a limit again."""
    data = TensorDataModule(clients=CLIENTS[:2], val=CLIENTS, test=CLIENTS, eval_batch_size=7)
    trainer = quiet_trainer(devices=2, strategy="ddp", callbacks=[FedAvg(2)], limit_val_batches=2)
    loops = (trainer.validate, trainer.test, trainer.validate)
    numbers = [loop(MeanPlace(0.1), datamodule=data, verbose=False)[0]["number"] for loop in loops]
    nothing = quiet_trainer(devices=2, strategy="ddp", callbacks=[FedAvg(2)], limit_test_batches=0)
    return [*numbers, len(nothing.test(MeanPlace(0.1), datamodule=data, verbose=False))]


class Distance(Quadratic):
    def __init__(self) -> None:
        super().__init__(lr=0.0)  # the weight stays 0
        self.metric = MaxMetric()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        distance = (self.w - batch[1]).abs().mean()
        self.log("distance", distance)
        self.metric.update(distance)
        if float(distance) == 110.0:
            self.log("largest", distance)
            self.log("metric", self.metric)


class TwoSets(TensorDataModule):
    def val_dataloader(self) -> Any:
        c = torch.tensor([10.0, 20.0, 60.0, 110.0], dtype=torch.float64)
        return [super().val_dataloader(), DataLoader(TensorDataset(torch.ones_like(c), c))]


def of_two_sets(limit: float) -> dict[str, float]:
    samples = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64)  # 1 and 6 on one process, 2 on the other
    clients = quadratic_clients([1.0, 1.0], [1.0, 1.0])
    data = TwoSets(clients, val=(torch.ones(3, dtype=torch.float64), samples), eval_batch_size=1)
    options = {"devices": 2, "strategy": "ddp", "num_sanity_val_steps": -1, "limit_val_batches": limit}
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(2, seed=0)], **options)
    trainer.fit(Distance(), datamodule=data)
    found = {name.replace("/dataloader_idx_", " "): float(value) for name, value in trainer.callback_metrics.items()}
    return {name: value for name, value in found.items() if " " in name}


def test_two_processes_evaluate_the_samples_of_one(tmp_path: Path) -> None:
    def work() -> list[Any]:
        scores = [evaluate(stage, 2, **limits) for stage, limits in LIMITS]
        scores.append(evaluate("validate", 2, eval_batch_size=1, limit_val_batches=1))
        return [scores, limited(), of_two_sets(1.0), of_two_sets(0.5)]

    for scores, numbers, distances, halves in on_two_processes(work, tmp_path):
        assert scores[:-1] == [pytest.approx(EXPECTED)] * len(LIMITS)
        # one batch of one sample: each process keeps one, places 0 and 1
        assert (scores[-1]["number"], scores[-1]["place"], scores[-1]["mean"]) == (2, 0.5, 0.5)
        assert numbers == [14, 31, 14, 0]
        # of the largest distance one process has not seen the sample
        assert distances == {"distance 0": 3.0, "distance 1": 50.0, "largest 1": 110.0, "metric 1": 110.0}
        # half of 3 batches is one, which holds a sample of each process, and half of 2 batches of each process is one
        assert halves == {"distance 0": 1.5, "distance 1": 15.0}
