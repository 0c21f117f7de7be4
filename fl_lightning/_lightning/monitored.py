"""The values that callbacks monitor, across a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import lightning.pytorch as pl
from lightning.pytorch.loops.fit_loop import _FitLoop
from torch import Tensor


def monitored_values(loop: _FitLoop) -> dict[str, Tensor]:
    """Return the last value of everything that callbacks can monitor, by name, on the device; call it on all processes.

    A round without training batches logs no training metric, and callbacks then see that of an earlier round.
    """
    trainer = loop.trainer
    values = {name: value for name, value in trainer.callback_metrics.items() if isinstance(value, Tensor)}
    if trainer.validating:  # the round's training metrics follow only when its epoch ends
        values = {**values, **loop.epoch_loop._results.metrics(on_step=False)["callback"]}
    return values


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
