"""A fit warns of hooks that it never calls, and of values that a round does not have."""

from __future__ import annotations

import warnings
from typing import Any

import lightning as L
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from torch import nn

from fl_lightning import FedAvg, TensorDataModule


def fit(*callbacks: L.Callback, module: L.LightningModule | None = None, rounds: int = 1, **options: Any) -> list[str]:
    """Return the warnings of a fit of five clients without validation data."""
    torch.manual_seed(0)
    made = Module(nn.Linear(6, 3)) if module is None else module
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = quiet_trainer(max_epochs=rounds, callbacks=[FedAvg(1.0, seed=0), *callbacks], **options)
        trainer.fit(made, datamodule=TensorDataModule(clients_of((6,)), batch_size=4))
    return [str(warning.message) for warning in caught]
