"""The optimizers and schedulers that aggregations count on, which divide updates by the clients' steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import lightning.pytorch as pl
import torch

from fl_lightning.parts.algorithm import Algorithm


def other_optimizers(trainer: pl.Trainer, momentum: float) -> str:
    """Return in words the module's optimizers that are not SGD with the given momentum; "" if there are none.

    Args:
        trainer: Its optimizers are the module's.
        momentum: The momentum that SGD should have, without Nesterov momentum and dampening.
    """
    found: dict[str, None] = {}
    for optimizer in trainer.optimizers:
        kind = type(optimizer).__name__
        if not isinstance(optimizer, torch.optim.SGD):
            found[kind] = None
            continue
        for group in optimizer.param_groups:
            options: list[str] = []
            # Without momentum, these have no effect.
            if group["momentum"]:
                options = [f"{name}={group[name]}" for name in ("nesterov", "dampening") if group[name]]
            if options or group["momentum"] != momentum:
                words = [f"{kind} with momentum={group['momentum']}", *options]
                found[", ".join(words)] = None
    return " and ".join(found)


def changes_within_rounds(trainer: pl.Trainer) -> bool:
    """Return whether a scheduler changes learning rates between a client's steps."""
    return any(config.interval == "step" for config in trainer.lr_scheduler_configs)


def check_schedules_last(trainer: pl.Trainer, rounds: int | None, batches: Sequence[int]) -> None:
    """Raise ``ValueError`` if clients that count their own steps could step a schedule past its end.

    Args:
        trainer: Its schedulers are the module's.
        rounds: Rounds of the fit; ``None`` if that is not known.
        batches: Batches of each client in a round.
    """
    most = math.ceil(max(batches) / int(trainer.accumulate_grad_batches)) * (rounds or 0)
    for config in trainer.lr_scheduler_configs:
        end = getattr(config.scheduler, "total_steps", None)
        if config.interval == "step" and end is not None and most > end:
            raise ValueError(
                f'`optimizer_state="kept"` lets schedules by step count each client\'s own steps, up to {most} in this '
                f"fit, but {type(config.scheduler).__name__} ends after {end}. Give `total_steps={most}`."
            )


def check_steps_known(trainer: pl.Trainer, callback: str, algorithm: Algorithm) -> None:
    """Raise ``ValueError`` if the aggregation needs other local steps than the clients make.

    Args:
        trainer: Its optimizers and schedulers are the module's.
        callback: The name of the aggregation callback.
        algorithm: The algorithm.
    """
    aggregation = algorithm.aggregation
    momentum = aggregation.counts_on_momentum
    if momentum is not None and (other := other_optimizers(trainer, momentum)):
        raise ValueError(
            f"{callback} divides updates by the reach of SGD's steps with `momentum={momentum}`, so the "
            "module needs torch.optim.SGD with the same momentum, without Nesterov momentum and dampening, got "
            f"{other}."
        )
    if aggregation.needs_one_rate and changes_within_rounds(trainer):
        raise ValueError(
            f"{callback} needs one learning rate within a round, but the module has a scheduler with interval='step'. "
            "Give interval='epoch', which steps once a round; QFedAvg may take `lipschitz` instead."
        )
