"""Copies of a module that cannot reach the trainer's loggers and counters."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import lightning.pytorch as pl

from fl_lightning._lightning.recording import CannotVectorize

#: Attributes of the trainer that differ between clients trained one after the other and at once.
_LOGGERS = ("logger", "loggers")
_COUNTERS = ("global_step", "fit_loop", "callback_metrics", "logged_metrics")
#: What is the same for all clients of a round.
_OF_ROUND = ("current_epoch", "num_training_batches")


class WatchedTrainer:
    """Stands in for the trainer of a copied module: what depends on the order of clients raises ``CannotVectorize``.

    Args:
        trainer: The trainer.

    Attributes:
        read_epoch: Whether the round's number, or another number of the round, has been read.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self.__dict__.update(_trainer=trainer, read_epoch=False)

    def __getattr__(self, name: str) -> Any:
        if name in _LOGGERS:
            raise CannotVectorize("`training_step` calls the logger itself, which sees one client at a time")
        if name in _COUNTERS:
            raise CannotVectorize(f"`training_step` reads `trainer.{name}`, which all clients share")
        if name in _OF_ROUND:
            self.__dict__["read_epoch"] = True
        return getattr(self._trainer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise CannotVectorize(f"`training_step` sets `trainer.{name}`, which all clients share")

    def __deepcopy__(self, memo: Any) -> WatchedTrainer:
        return self


def copied(module: Any, trainer: pl.Trainer) -> tuple[Any, WatchedTrainer]:
    """Return a deep copy of a module, and the stand-in for the trainer that it sees."""
    watched = WatchedTrainer(trainer)
    copy = deepcopy(module, {id(trainer): watched})
    for part in copy.modules():
        if isinstance(part, pl.LightningModule):
            part.__dict__["_trainer"] = watched  # Lightning leaves it out of copies
    return copy, watched
