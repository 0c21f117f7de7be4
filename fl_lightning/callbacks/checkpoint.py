"""Checkpoints among aggregated models."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

from fl_lightning._lightning.round_loop import RoundLoop


class FederatedCheckpoint(ModelCheckpoint):
    """A ``ModelCheckpoint`` that chooses among models that the server aggregated.

    With RADFed the module holds a mean of circulating models between two aggregations. That mean is validated, and is
    no candidate for a checkpoint. The algorithm itself says which rounds aggregate (``fed/aggregated`` in the logs), so
    this also holds where rounds are empty or cycles are extended. Under other algorithms it is a ``ModelCheckpoint``.
    The arguments are those of ``ModelCheckpoint``.
    """

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save, if the model is an aggregated one."""
        if _is_candidate(trainer):
            super().on_validation_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save, if the model is an aggregated one."""
        if _is_candidate(trainer):
            super().on_train_epoch_end(trainer, pl_module)


def _is_candidate(trainer: pl.Trainer) -> bool:
    loop = trainer.fit_loop
    return not isinstance(loop, RoundLoop) or loop.aggregated
