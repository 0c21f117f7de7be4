"""Other processes see the data as they are when a round begins; and one that dies is told."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.read_samples import Points, fit, flat, linear, sets_of
from helpers.toys import quiet_trainer
from torch import Tensor

from fl_lightning import ClientDatasetsModule, FederatedCheckpoint

EXECUTORS = ["sequential", "vectorized"]
pytestmark = pytest.mark.auto_decides


class Grows(L.Callback):
    """Changes an attribute of some objects before each round."""

    def __init__(self, *objects: Any) -> None:
        self.objects = objects

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        for changed in self.objects:
            changed.scale = 1.0 + trainer.current_epoch


# ---- what is changed between rounds ----


@pytest.mark.parametrize("executor", EXECUTORS)
def test_data_that_change_each_round_do_not_depend_on_processes(executor: str) -> None:
    def run(num_workers: int) -> Tensor:
        sets = sets_of()
        return fit(sets, Grows(*sets), executor=executor, num_workers=num_workers)

    assert torch.equal(run(0), run(2))


def test_a_resumed_fit_on_changing_data_is_the_uninterrupted_one(tmp_path: Path) -> None:
    def run(rounds: int, *more: L.Callback, ckpt_path: str | None = None) -> Tensor:
        sets = sets_of()
        return fit(sets, Grows(*sets), *more, rounds=rounds, num_workers=1, ckpt_path=ckpt_path)

    run(2, FederatedCheckpoint(tmp_path))
    assert torch.equal(run(4, FederatedCheckpoint(tmp_path), ckpt_path="last"), run(4))


def test_validation_and_central_training_see_changed_data() -> None:
    losses, weights = [], []
    for num_workers in (0, 1):
        val, sets, module = Points(9, 99), sets_of(), linear()
        trainer = quiet_trainer(max_epochs=3, callbacks=[Grows(val, *sets)])
        data = ClientDatasetsModule(sets, val=val, batch_size=4, shuffle=False, num_workers=num_workers)
        trainer.fit(module, datamodule=data)
        losses.append(trainer.callback_metrics["val_loss"])
        weights.append(flat(module))
    assert torch.equal(*losses)
    assert torch.equal(*weights)


# ---- processes that are not forked ----


# ---- processes that die ----


class Killed(Points):
    """Ends every process that reads its fourth sample but the one that made the data."""

    def __init__(self, size: int, seed: int) -> None:
        super().__init__(size, seed)
        self.maker = os.getpid()

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 3 and os.getpid() != self.maker:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_process_that_dies_is_told() -> None:
    before = multiprocessing.active_children()
    with pytest.raises(RuntimeError, match="num_workers=1"):
        fit(sets_of(Killed), num_workers=1)
    assert set(multiprocessing.active_children()) <= set(before)
    fit(sets_of(Killed), num_workers=0)
