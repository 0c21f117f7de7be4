"""The file that ``ckpt_path="last"`` means."""

from __future__ import annotations

from abc import ABC, abstractmethod

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint


class ChoosesLast(ModelCheckpoint, ABC):
    """A ``ModelCheckpoint`` whose subclass chooses among the files that ``ckpt_path="last"`` finds."""

    @abstractmethod
    def choose_last(self, paths: set[str]) -> set[str]:
        """Return those of the paths that may be resumed from; Lightning takes the newest."""

    def _find_last_checkpoints(self, trainer: pl.Trainer) -> set[str]:
        return self.choose_last(super()._find_last_checkpoints(trainer))
