"""Checkpoints among aggregated models."""

from __future__ import annotations

import inspect
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from fl_lightning._lightning.round_loop import RoundLoop


class FederatedCheckpoint(ModelCheckpoint):
    """A ``ModelCheckpoint`` that chooses among models that the server aggregated.

    With RADFed the module holds a mean of circulating models between two aggregations. That mean is validated, and is
    no candidate for a checkpoint. The algorithm itself says which rounds aggregate (``fed/aggregated`` in the logs), so
    this also holds where rounds are empty or cycles are extended. Under other algorithms it is a ``ModelCheckpoint``.

    The arguments are those of ``ModelCheckpoint``. To resume, ``save_last`` is not enough: its file is the last
    aggregated model, not the last round. Take a second, plain ``ModelCheckpoint`` for that.

    Raises:
        ValueError: If checkpoints are asked for inside of rounds, where the server aggregates nothing.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(ModelCheckpoint).bind(*args, **kwargs).arguments
        for name in ("every_n_train_steps", "train_time_interval"):
            if given.get(name):
                raise ValueError(
                    f"`{name}` must be None, got {given[name]!r}: the server aggregates at the end of a round alone. "
                    "Give `every_n_epochs`, a number of rounds."
                )
        super().__init__(*args, **kwargs)

    # nothing is saved inside of rounds; with a hook that says so, the clients of a round can be stacked
    on_train_batch_end = Callback.on_train_batch_end

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save, if the model is an aggregated one."""
        if _is_candidate(trainer):
            super().on_validation_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save, if the model is an aggregated one."""
        if _is_candidate(trainer):
            super().on_train_epoch_end(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the last model if none was saved, if it is an aggregated one."""
        if _is_candidate(trainer):
            super().on_train_end(trainer, pl_module)


def _is_candidate(trainer: pl.Trainer) -> bool:
    loop = trainer.fit_loop
    # the sanity check comes before the server has a model
    return not isinstance(loop, RoundLoop) or (not trainer.sanity_checking and loop.aggregated)
