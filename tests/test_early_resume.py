"""Resuming before every client has trained, and what hooks write into the module between rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from lightning.pytorch.callbacks import Callback

from fl_lightning import FedAvg, FedBuff, RADFed, TensorDataModule


class Write(Callback):
    """Sets the weight at the end of the first round."""

    def __init__(self, hook: str) -> None:
        setattr(self, hook, self._write)

    def _write(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == 0:
            with torch.no_grad():
                module.w.fill_(8.0)


def train(callback: Any, hook: str) -> float:
    module = Quadratic(0.5)
    data_module = TensorDataModule(quadratic_clients([1.0, 1.0], [2.0, 4.0]), batch_size=None)
    quiet_trainer(max_epochs=2, callbacks=[callback, Write(hook)]).fit(module, datamodule=data_module)
    return float(module.w.detach())


@pytest.mark.parametrize("hook", ["on_train_epoch_end", "on_round_end"])
def test_what_a_hook_writes_is_the_servers_model_from_then_on(hook: str) -> None:
    # round 2 goes half the way from 8 to each client's optimum: 5 and 6
    assert train(FedAvg(1.0), hook) == 5.5


def test_writing_before_a_rounds_clients_counts_too() -> None:
    # round 1 goes from 8, set at its start, to 5 and 6; round 2 from 5.5 to 3.75 and 4.75
    assert train(FedAvg(1.0), "on_train_epoch_start") == 4.25


@pytest.mark.parametrize("callback", [RADFed(3, 1.0), FedBuff(3, 1)])
def test_writing_while_clients_work_on_other_models_is_an_error(callback: Any) -> None:
    with pytest.raises(RuntimeError, match="between two rounds"):
        train(callback, "on_train_epoch_end")
