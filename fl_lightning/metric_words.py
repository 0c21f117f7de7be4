"""Tells from the name of a metric whether larger values are better."""

from __future__ import annotations

import re

_LARGER = {"acc", "accuracy", "auc", "auroc", "f1", "precision", "recall", "iou", "dice", "bleu", "r2"}
_SMALLER = {"loss", "error", "err", "mae", "mape", "mse", "nll", "perplexity", "rmse", "std", "gap"}


def larger_is_better(name: str) -> bool | None:
    """Return whether larger values of a metric are better; ``None`` if its name does not say.

    Args:
        name: The name in the logs. One word for small values decides: ``"val_dice_loss"`` is better when it is smaller,
            and so is ``"val_acc_clients_std"``.
    """
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    if words & _SMALLER:
        return False
    return True if words & _LARGER else None


def suitable_mode(name: str, mode: str) -> str | None:
    """Return the mode that a metric's name asks for if ``mode`` contradicts it; ``None`` if it does not.

    Args:
        name: The name in the logs.
        mode: ``"max"`` or ``"min"``.
    """
    larger = larger_is_better(name)
    suitable = "max" if larger else "min"
    return None if larger is None or mode == suitable else suitable
