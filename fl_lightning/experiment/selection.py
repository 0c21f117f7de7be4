"""Chooses the model of a fit that is tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

from fl_lightning.callbacks.checkpoint import FederatedCheckpoint
from fl_lightning.experiment.plan import rounds_of
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
    every = int(config["trainer"].get("check_val_every_n_epoch", 1))
    _check_candidates(every, rounds_of(config["trainer"]), algorithm if config["select"] == "aggregated" else None)
    settings: dict[str, Any] = {
        "monitor": config["monitor"],
        "mode": config["mode"],
        "save_weights_only": True,
        "enable_version_counter": False,
    }
    if config["select"] == "aggregated":
        return FederatedCheckpoint(folder, "best", save_last=False, **settings)
    return ModelCheckpoint(folder, "best", every_n_epochs=every, **settings)


def _check_candidates(every: int, rounds: int | None, algorithm: Algorithm | None) -> None:
    if not rounds:  # none is told elsewhere
        return
    if every > rounds:
        raise ValueError(
            f"No model would be validated: validation comes every {every} rounds, and there are {rounds}. Lower "
            "`check_val_every_n_epoch`, or give more rounds."
        )
    schedule = None if algorithm is None else algorithm.schedule
    if algorithm is None or not isinstance(schedule, Redistribution):
        return
    cycle, validated = schedule.redistributions, range(every, rounds + 1, every)
    # where a round may be empty, or a cycle may be extended, an aggregation may come in any round of these
    later = validated[-1] >= cycle and (schedule.evaluate == "aggregate" or not _is_regular(algorithm, schedule))
    if not later and not any(number % cycle == 0 for number in validated):
        raise ValueError(
            f"No aggregated model would be validated: the server acts every {cycle} rounds, validation comes every "
            f"{every}, and there are {rounds}. Let `check_val_every_n_epoch` divide {cycle}, give more rounds, or "
            "`select: virtual`."
        )


def _is_regular(algorithm: Algorithm, schedule: Redistribution) -> bool:
    """Whether every round certainly has clients, so that the server acts after every S rounds."""
    everybody = algorithm.participation.available is None and type(algorithm.sampler) in _NEVER_EMPTY
    return everybody and not schedule.extend_cycle


def why_there_is_none(monitor: str, trainer: L.Trainer, best: ModelCheckpoint) -> str:
    """Return a sentence that says why a fit has no best model, after the fit."""
    if monitor not in trainer.callback_metrics:
        return (
            f"There is no best model: `{monitor}` was never logged. Metrics were "
            f"{', '.join(sorted(trainer.callback_metrics)) or 'none'}. Correct `monitor`; if the split leaves nothing "
            "for validation, give another `split`, or `select: last`."
        )
    if best.best_model_path:
        return (
            f"There is no best model: `{monitor}` was never finite; it was {best.best_model_score}. Lower the learning "
            "rate."
        )
    return (
        "There is no best model: whenever the model was validated, the server had not aggregated it. Rounds may have "
        "been empty: let `check_val_every_n_epoch` be 1, give more rounds, or `select: virtual`. Or the clients handed "
        "back NaN, and `fed/left_out` counts them: lower the learning rate."
    )
