"""Evaluations by two processes: limits leave the same samples as with one, and several loaders their own numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import ClientMetrics, FedAvg, TensorDataModule

# 31 evaluation samples, whose only feature is their place: 5 batches of 7
PLACES = torch.arange(31.0).reshape(31, 1)
CLIENTS = [(x, torch.zeros(len(x), dtype=torch.long)) for x in PLACES.split([10, 15, 6])]


class MeanPlace(Quadratic):
    """Logs the mean place of the samples, and their number."""

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        self.log("place", batch[0].mean())
        self.log("number", float(len(batch[0])), on_epoch=True, reduce_fx="sum")
        return {"preds": batch[0], "target": batch[1]}

    test_step = validation_step


def evaluate(stage: str, devices: int, eval_batch_size: int = 7, **limits: Any) -> dict[str, float]:
    """Return what an evaluation by itself, or the one in a fit, logs."""
    metrics = ClientMetrics(metric=lambda preds, target: preds.mean(), name="place")
    data = TensorDataModule(clients=CLIENTS[:2], val=CLIENTS, test=CLIENTS, eval_batch_size=eval_batch_size)
    strategy = "ddp_fork" if devices > 1 else "auto"
    callbacks = [FedAvg(2, seed=1), metrics]
    trainer = quiet_trainer(max_epochs=1, devices=devices, strategy=strategy, callbacks=callbacks, **limits)
    keywords = {} if stage == "fit" else {"verbose": False}
    getattr(trainer, stage)(MeanPlace(0.1), datamodule=data, **keywords)
    key = "test" if stage == "test" else "val"
    names = {"number": "number", "place": "place"} | {
        name: f"{key}_place_clients{end}" for name, end in (("mean", ""), ("least", "_min"), ("most", "_max"))
    }
    return {name: float(trainer.callback_metrics[logged]) for name, logged in names.items()}


LIMITS: list[tuple[str, dict[str, Any]]] = [
    ("validate", {"limit_val_batches": 0.5}),  # 2.5 of 5 batches, rounded down
    ("fit", {"overfit_batches": 2}),
    ("validate", {"limit_val_batches": 2}),
    ("test", {"limit_test_batches": 2}),
    ("test", {"limit_test_batches": 0.4}),
    ("fit", {"limit_val_batches": 2, "num_sanity_val_steps": 2}),
    ("fit", {"fast_dev_run": 2}),
]
#: In two processes most of them need a longer run.
RUNS = [
    pytest.param(devices, *limits, marks=pytest.mark.long if devices > 1 and place > 1 else (), id=f"{devices}-{place}")
    for devices in (1, 2)
    for place, limits in enumerate(LIMITS)
]


@pytest.mark.parametrize(("devices", "stage", "limits"), RUNS)
def test_a_limit_leaves_the_first_batches_of_all_samples(devices: int, stage: str, limits: dict[str, Any]) -> None:
    # places 0 to 13: 0 to 9 of the first client, mean 4.5, and 10 to 13 of the second, mean 11.5
    expected = {"number": 14, "place": 6.5, "mean": 8.0, "least": 4.5, "most": 11.5}
    assert evaluate(stage, devices, **limits) == pytest.approx(expected)


def test_a_limit_of_less_than_a_batch_of_all_samples_is_an_error() -> None:
    with pytest.raises(Exception, match=r"0\.1 \* 5 < 1"):
        evaluate("validate", 1, limit_val_batches=0.1)


def test_each_process_keeps_a_sample() -> None:
    # one batch of one sample, and two processes: places 0 and 1
    found = evaluate("validate", 2, eval_batch_size=1, limit_val_batches=1)
    assert (found["number"], found["place"], found["mean"]) == (2, 0.5, 0.5)


# ---- several loaders ----


class Distance(Quadratic):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int) -> None:
        distance = (self.w - batch[1]).abs().mean()
        self.log("distance", distance)
        if float(distance) == 110.0:
            self.log("largest", distance)


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
    # This process has not seen that sample.
    assert float(trainer.callback_metrics["largest/dataloader_idx_1"]) == 110.0
