"""The file that ``ckpt_path="last"`` means, and the rounds that a ``ModelCheckpoint`` saves."""

from __future__ import annotations

from abc import ABC, abstractmethod

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint


class ChoosesLast(ModelCheckpoint, ABC):
    """A ``ModelCheckpoint`` whose subclass chooses among the files that ``ckpt_path="last"`` finds."""

    @abstractmethod
    def choose_last(self, paths: set[str]) -> set[str]:
        """Return the paths that may be resumed from; Lightning takes the newest."""

    def _find_last_checkpoints(self, trainer: pl.Trainer) -> set[str]:
        return self.choose_last(super()._find_last_checkpoints(trainer))


def let_checkpoints_save_again(trainer: pl.Trainer) -> None:
    """Let each ``ModelCheckpoint`` save the round that is done, whether or not clients took steps in it.

    Lightning saves once at each number of optimizer steps. But late results move the server in a round without steps,
    and a fit that resumes before such a round has saved at no number of steps yet.
    """
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint):
            callback._last_global_step_saved = -1
