"""Chooses the model of a fit that is tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

from fl_lightning.callbacks.checkpoint import FederatedCheckpoint
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.sampling import ImportanceSampler, UniformSampler
from fl_lightning.parts.schedules import Redistribution

_NEVER_EMPTY = (ImportanceSampler, UniformSampler)


def best_checkpoint(folder: Path, config: dict[str, Any], algorithm: Algorithm) -> ModelCheckpoint | None:
    """Return the callback that keeps the best model of a fit; ``None`` if the last one is to be tested.

    Raises:
        ValueError: If the fit could never have a best model.
    """
    if config["select"] == "last":
        return None
    every, rounds = int(config["trainer"].get("check_val_every_n_epoch", 1)), config["trainer"]["max_epochs"]
    if every > rounds:
        raise ValueError(f"No model would be validated: validation comes every {every} rounds of {rounds}.")
    settings: dict[str, Any] = {name: config[name] for name in ("monitor", "mode")}
    settings |= {"save_weights_only": True, "enable_version_counter": False}
    if config["select"] == "aggregated":
        _check_aggregations(range(every, rounds + 1, every), rounds, algorithm)
        return FederatedCheckpoint(folder, "best", save_last=False, **settings)
    return ModelCheckpoint(folder, "best", every_n_epochs=every, **settings)


def _check_aggregations(validated: range, rounds: int, algorithm: Algorithm) -> None:
    schedule = algorithm.schedule
    if not isinstance(schedule, Redistribution):
        return
    cycle = schedule.redistributions
    # where a round may be empty, or a cycle may be extended, an aggregation may come in any later round
    sampler_is_sure = algorithm.participation.available is None and type(algorithm.sampler) in _NEVER_EMPTY
    is_regular = sampler_is_sure and not schedule.extend_cycle and schedule.evaluate != "aggregate"
    if all(number % cycle for number in validated) and (is_regular or validated[-1] < cycle):
        raise ValueError(
            f"No aggregated model would be validated: the server acts every {cycle} rounds of {rounds}, and validation "
            f"comes every {validated.step}. Let `check_val_every_n_epoch` divide {cycle}, or `select: virtual`."
        )


def why_there_is_none(monitor: str, trainer: L.Trainer, best: ModelCheckpoint) -> str:
    """Return a sentence that says why a fit has no best model, after the fit."""
    if monitor not in trainer.callback_metrics:
        logged = ", ".join(sorted(trainer.callback_metrics)) or "none"
        return f"`monitor` {monitor} was never logged; metrics were {logged}. Maybe the split has no validation."
    if best.best_model_path:
        return f"`monitor` {monitor} was never finite: lower the learning rate."
    return (
        "No validated model was aggregated. Rounds may have been empty: let `check_val_every_n_epoch` be 1. Or the "
        "clients handed back NaN, and `fed/left_out` counts them: lower the learning rate."
    )
