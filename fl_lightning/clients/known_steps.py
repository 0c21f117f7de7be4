"""Checks that clients make the steps whose reach an algorithm or an aggregation knows."""

from __future__ import annotations

import lightning.pytorch as pl
import torch

from fl_lightning.parts.aggregation import Aggregation
from fl_lightning.parts.fair_mean import FairMean
from fl_lightning.parts.normalized_mean import NormalizedMean


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


def refuse_unknown_steps(trainer: pl.Trainer, callback: str, aggregation: Aggregation) -> None:
    """Raise ``ValueError`` if an aggregation takes the clients' steps for other ones than they make.

    Args:
        trainer: Its optimizers and schedulers are the module's.
        callback: The name of the aggregation callback.
        aggregation: Merges the results of these steps.
    """
    if isinstance(aggregation, NormalizedMean) and (other := other_optimizers(trainer, aggregation.momentum)):
        raise ValueError(
            f"{callback} divides updates by the reach of SGD's steps with `momentum={aggregation.momentum}`, so the "
            "module needs torch.optim.SGD with the same momentum, without Nesterov momentum and dampening; it has "
            f"{other}. The reach of other optimizers' steps is not known."
        )
    own_rate = isinstance(aggregation, FairMean) and aggregation.lipschitz is None
    if (isinstance(aggregation, NormalizedMean) or own_rate) and changes_within_rounds(trainer):
        way_out = ", or `lipschitz`, the inverse of a rate" if own_rate else ""
        raise ValueError(
            f"{callback} needs one learning rate within a round, but the module has a scheduler with interval='step'. "
            f"Give interval='epoch', which steps once a round{way_out}."
        )
