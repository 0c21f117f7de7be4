"""A fit that resumes after early stopping has ended it stays ended."""

from __future__ import annotations

from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.utilities.rank_zero import rank_zero_info


def stop_where_stopped(loop: _FitLoop) -> None:
    """Ask the trainer to stop if the run that resumes was stopped early; say so if no round is left to train."""
    trainer, progress = loop.trainer, loop.epoch_progress.current
    for callback in trainer.callbacks:
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
