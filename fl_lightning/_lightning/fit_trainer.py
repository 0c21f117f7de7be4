"""A trainer as type checkers must see it."""

from __future__ import annotations

from typing import Protocol, cast

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import Profiler


class FitTrainer(Protocol):
    """The attributes of a trainer that Lightning sets from outside of its class, so that type checkers miss them."""

    callbacks: list[Callback]
    datamodule: pl.LightningDataModule | None
    fast_dev_run: int | bool
    log_every_n_steps: int
    overfit_batches: int | float
    profiler: Profiler
    reload_dataloaders_every_n_epochs: int


def fit_trainer(trainer: pl.Trainer) -> FitTrainer:
    """Return a trainer, for its attributes that type checkers miss."""
    return cast(FitTrainer, trainer)
