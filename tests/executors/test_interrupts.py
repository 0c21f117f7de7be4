"""Ctrl-C in a step of a stack leaves nothing behind: the same process trains on."""

from __future__ import annotations

import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from torch import nn

from fl_lightning import FedAvg, TensorDataModule


def mapped() -> Module:
    """Return a module whose steps no program takes."""
    torch.manual_seed(0)
    return Module(nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)))


def fit(module: Module) -> torch.Tensor:
    data = TensorDataModule(clients_of((6,)), batch_size=4)
    callback = FedAvg(1.0, seed=1, executor="vectorized")
    quiet_trainer(max_epochs=1, callbacks=[callback]).fit(module, datamodule=data)
    return nn.utils.parameters_to_vector(module.parameters()).detach().clone()
