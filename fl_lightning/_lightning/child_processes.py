"""Strategies whose processes end with the fit, so that only a part of its results comes back."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.strategies.launchers.multiprocessing import _MultiProcessingLauncher
from lightning.pytorch.utilities.rank_zero import rank_zero_warn


def ends_with_fit(trainer: pl.Trainer) -> bool:
    """Return whether Lightning trains in processes of their own, as ``"ddp_fork"`` does, and not in the user's."""
    return isinstance(trainer.strategy.launcher, _MultiProcessingLauncher)


def warn_of_lost_results(trainer: pl.Trainer) -> None:
    """Warn of the results that do not come back from such processes."""
    if ends_with_fit(trainer):
        rank_zero_warn(
            "With this strategy Lightning trains in processes that end with the fit. Weights, logged metrics and "
            "checkpoints come back. Values of callbacks and parts do not: `spent` of a privacy part stays 0, records "
            "such as `ClientMetrics.values` are empty, and a later evaluation knows no personal parameters. Read "
            'such values in a callback\'s `on_fit_end`, or give `strategy="ddp"`, with which they stay.'
        )
