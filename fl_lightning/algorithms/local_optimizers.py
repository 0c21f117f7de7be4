"""Whether clients make the steps whose reach an algorithm knows."""

from __future__ import annotations

import lightning.pytorch as pl
import torch


def other_optimizers(trainer: pl.Trainer, momentum: float) -> str:
    """Return in words the module's optimizers that are not SGD of a momentum; nothing if all are.

    Args:
        trainer: Its optimizers are the module's.
        momentum: That of the SGD, without Nesterov momentum and dampening.
    """
    found: dict[str, None] = {}
    for optimizer in trainer.optimizers:
        if not isinstance(optimizer, torch.optim.SGD):
            found[type(optimizer).__name__] = None
            continue
        for group in optimizer.param_groups:
            own = group["momentum"]
            further = [f"{name}={group[name]}" for name in ("nesterov", "dampening") if own and group[name]]
            if further or own != momentum:
                found[f"{type(optimizer).__name__} with {', '.join([f'momentum={own}', *further])}"] = None
    return " and ".join(found)


def changes_within_rounds(trainer: pl.Trainer) -> bool:
    """Return whether a scheduler changes learning rates between a client's steps."""
    return any(config.interval == "step" for config in trainer.lr_scheduler_configs)
