"""A fit warns of hooks that it never calls, and of values that a round does not have."""

from __future__ import annotations

import warnings
from typing import Any

import lightning as L
import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from fl_lightning import FedAvg, FederatedCheckpoint, TensorDataModule


def fit(*callbacks: L.Callback, module: L.LightningModule | None = None, rounds: int = 1, **options: Any) -> list[str]:
    """Return the warnings of a fit of five clients without validation data."""
    torch.manual_seed(0)
    made = Module(nn.Linear(6, 3)) if module is None else module
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = quiet_trainer(max_epochs=rounds, callbacks=[FedAvg(1.0, seed=0), *callbacks], **options)
        trainer.fit(made, datamodule=TensorDataModule(clients_of((6,)), batch_size=4))
    return [str(warning.message) for warning in caught]


class Misspelt(L.Callback):
    def on_client_finish(self, trainer: Any, pl_module: Any, result: Any) -> None: ...


class HookOfModule(Module):
    def on_client_end(self, result: Any) -> None: ...


def test_hooks_that_are_never_called() -> None:
    told = [text for text in fit(Misspelt(), module=HookOfModule(nn.Linear(6, 3))) if "never called in" in text]
    assert sorted(text.split("`")[1] for text in told) == ["HookOfModule.on_client_end", "Misspelt.on_client_finish"]


def test_a_monitored_value_without_validation_data(tmp_path: Any) -> None:
    kept, stopping = FederatedCheckpoint(tmp_path, monitor="val_loss"), EarlyStopping("train_loss")
    told = [text for text in fit(kept, stopping, enable_checkpointing=True) if "but the data module has no" in text]
    assert len(told) == 1 and "'val_loss'" in told[0]


class OfSteps(Module):
    """Logs as Lightning does by default: single batches only."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("mse", loss)
        return loss


@pytest.mark.parametrize(("every", "is_told"), [(50, True), (2, False)])
def test_values_of_single_batches(every: int, is_told: bool, tmp_path: Any) -> None:
    logger = CSVLogger(tmp_path)
    module = OfSteps(nn.Linear(6, 3))
    told = fit(module=module, logger=logger, log_every_n_steps=every, rounds=2)
    assert sum(text.startswith("`mse` is logged for single batches only") for text in told) == is_told
