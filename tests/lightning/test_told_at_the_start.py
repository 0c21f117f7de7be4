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


class Right(L.Callback):
    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None: ...

    def on_round_end(self, trainer: Any, pl_module: Any) -> None: ...

    @property
    def on_client_data(self) -> int:
        return 1


class HookOfModule(Module):
    def on_client_end(self, result: Any) -> None: ...


def test_hooks_that_are_never_called() -> None:
    told = [text for text in fit(Misspelt(), Right()) if "never called in a federated fit" in text]
    assert told == [
        "`Misspelt.on_client_finish` is never called in a federated fit. The hooks of callbacks are "
        "`on_client_start`, `on_client_end`, `on_round_end`."
    ]
    told = [text for text in fit(module=HookOfModule(nn.Linear(6, 3))) if "never called" in text]
    assert told == ["`HookOfModule.on_client_end` is never called in a federated fit. Define it in a callback."]


def test_a_monitored_value_without_validation_data(tmp_path: Any) -> None:
    told = fit(FederatedCheckpoint(tmp_path, monitor="val_loss"), enable_checkpointing=True)
    assert any(text.startswith("FederatedCheckpoint monitors 'val_loss', but the data module has no") for text in told)
    assert not any("no validation samples" in text for text in fit(EarlyStopping("train_loss")))


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


def test_a_short_trial_run_tells_nothing_of_single_batches() -> None:
    told = fit(module=OfSteps(nn.Linear(6, 3)), fast_dev_run=True)
    assert not any("logged for single batches" in text for text in told)
