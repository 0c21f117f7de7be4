"""What an algorithm logs at a round's end, and what of it the progress bar shows."""

from __future__ import annotations

from collections.abc import Mapping

import lightning.pytorch as pl

from fl_lightning._lightning.logging import log_round

#: Figures that nobody should have to look up.
IN_THE_BAR = ("fed/epsilon",)


def log_values(trainer: pl.Trainer, pl_module: pl.LightningModule, values: Mapping[str, float]) -> None:
    """Log numbers that are the same on all processes; some are shown in the progress bar."""
    log_round(trainer, pl_module, {name: value for name, value in values.items() if name not in IN_THE_BAR})
    if trainer.barebones:  # it warns of every value that is logged
        return
    for name in IN_THE_BAR:
        if name in values:
            pl_module.log(name, float(values[name]), prog_bar=True, sync_dist=trainer.world_size > 1)
