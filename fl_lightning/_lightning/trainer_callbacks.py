"""What Lightning's own callbacks must know of rounds: stops, saved files, monitored values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.progress import _ProcessedTracker
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torch.utils._pytree import tree_map_only

from fl_lightning._lightning.checkpoint_files import DamagedCheckpointError, read_checkpoint
from fl_lightning._lightning.contents import same_content
from fl_lightning._lightning.fit_trainer import fit_trainer


def stop_where_stopped(loop: _FitLoop) -> None:
    """Ask the trainer to stop if the run that resumes was stopped early; say so if no round is left to train."""
    trainer, progress = loop.trainer, loop.epoch_progress.current
    assert isinstance(progress, _ProcessedTracker)
    for callback in fit_trainer(trainer).callbacks:
        if not isinstance(callback, EarlyStopping) or callback.stopping_reason is EarlyStoppingReason.NOT_STOPPED:
            continue
        # a run that has more rounds behind it was trained on after it had stopped
        if progress.processed <= max(callback.stopped_epoch + 1, loop.min_epochs or 0):
            trainer.should_stop = True
            if loop._can_stop_early:
                progress.completed = progress.processed
                rank_zero_info(
                    f"{type(callback).__name__}(monitor={callback.monitor!r}) ended this run after round "
                    f"{callback.stopped_epoch + 1}, so no further round is trained. To train on, leave "
                    f"{type(callback).__name__} out: a new one takes `patience` and its count from the checkpoint. For "
                    "another run give another folder."
                )


class ChosenCheckpoint(ModelCheckpoint, ABC):
    """A ``ModelCheckpoint`` whose subclass chooses among rounds, and among files that ``ckpt_path="last"`` finds."""

    @abstractmethod
    def is_candidate(self, trainer: pl.Trainer) -> bool:
        """Return whether the round's model may be saved as the best."""

    @abstractmethod
    def choose_last(self, paths: set[str]) -> set[str]:
        """Return the paths that may be resumed from; Lightning takes the newest."""

    @abstractmethod
    def remove(self, trainer: pl.Trainer, path: str) -> None:
        """Remove a file that is no longer among the best, now or later."""

    def file_exists(self, filepath: Any, trainer: pl.Trainer) -> bool:
        """Return whether a file is there that may not be replaced; call it on all processes.

        A fit that is killed after it has saved a round's model, and before it has noted that, saves the same model
        again when it resumes. That replaces the file, where another model gets another name.
        """
        if not super().file_exists(filepath, trainer):
            return False
        state = trainer.strategy.lightning_module_state_dict()
        is_same = trainer.is_global_zero and _holds(filepath, trainer, state)
        return not trainer.strategy.broadcast(is_same)

    def _remove_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        self.remove(trainer, filepath)

    def _find_last_checkpoints(self, trainer: pl.Trainer) -> set[str]:
        return self.choose_last(super()._find_last_checkpoints(trainer))

    def _should_skip_saving_checkpoint(self, trainer: pl.Trainer) -> bool:
        return super()._should_skip_saving_checkpoint(trainer) or not self.is_candidate(trainer)


def _holds(path: Any, trainer: pl.Trainer, state: Mapping[str, Any]) -> bool:
    """Return whether a file is a checkpoint of the round that ends, with this ``state_dict``."""
    try:
        kept = read_checkpoint(Path(path))
    except (FileNotFoundError, DamagedCheckpointError):
        return False
    if (kept["epoch"], kept["global_step"]) != (trainer.current_epoch, trainer.global_step):
        return False
    return same_content(dict(kept["state_dict"]), tree_map_only(Tensor, Tensor.cpu, dict(state)))


def let_checkpoints_save_again(trainer: pl.Trainer) -> None:
    """Let each ``ModelCheckpoint`` save the round that is done, whether or not clients took steps in it.

    Lightning saves once at each number of optimizer steps. But late results move the server in a round without steps,
    and a fit that resumes before such a round has saved at no number of steps yet.
    """
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint):
            callback._last_global_step_saved = -1


class MonitoredValues:
    """The values that callbacks monitor; see :class:`~fl_lightning.parts.kept.Kept`.

    A round without training batches logs no training metric, and callbacks then see that of an earlier round.

    Args:
        loop: The fit's loop.
    """

    def __init__(self, loop: _FitLoop) -> None:
        self._loop = loop

    def keep(self) -> None:
        """Make the last value of each name the boundary's; call it on all processes."""
        trainer = self._loop.trainer
        values = {name: value for name, value in trainer.callback_metrics.items() if isinstance(value, Tensor)}
        # The round's training metrics follow only when its epoch ends.
        if trainer.validating:
            values.update(self._loop.epoch_loop._results.metrics(on_step=False)["callback"])
        self._kept = values

    def put_back(self) -> None:
        """Forget what the round has logged, which callbacks would see, and return to the boundary's values."""
        self._loop.epoch_loop._results.reset()
        restore_monitored_values(self._loop.trainer, self._kept)

    def state_dict(self) -> dict[str, Any]:
        """Return the boundary's values, on the CPU."""
        return {"monitored": {name: value.detach().cpu() for name, value in self._kept.items()}}


def names_of_validation(trainer: pl.Trainer) -> set[str]:
    """Return the names that a validation which ends logged, and training does not; call it on all processes."""
    loop = trainer.fit_loop.epoch_loop
    validated, trained = (
        results.metrics(on_step=False)["callback"] for results in (loop.val_loop._results, loop._results)
    )
    return validated.keys() - trained.keys()


def restore_monitored_values(trainer: pl.Trainer, values: Mapping[str, Tensor]) -> None:
    """Let callbacks see the values of a checkpoint until there are new ones."""
    device = trainer.strategy.root_device
    trainer.callback_metrics.update({name: value.to(device) for name, value in values.items()})


def check_alone(callback: object, kind: type, trainer: pl.Trainer, what: str, why: str) -> None:
    """Raise ``ValueError`` if the trainer has a second callback of a class.

    When a trainer is made, Lightning itself refuses two of one class that have a state. It does not look at those that
    the module's ``configure_callbacks`` returns, or that are added to ``trainer.callbacks``.

    Args:
        callback: The first one.
        kind: The class.
        trainer: The trainer.
        what: What such callbacks are.
        why: Why there may not be two.
    """
    others = [each for each in fit_trainer(trainer).callbacks if isinstance(each, kind) and each is not callback]
    if others:
        names = f"{type(callback).__name__} and {type(others[0]).__name__}"
        raise ValueError(f"The trainer has two {what}, {names}; {why}. Keep one of them.")
