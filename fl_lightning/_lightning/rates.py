"""Learning rates of single steps of a stack, for the callbacks that monitor them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.callbacks.lr_monitor import LearningRateMonitor

from fl_lightning._lightning.client_loop import ClientLoop

GroupOptions = list[dict[str, Any]]


def show_rates(loop: ClientLoop, monitors: Sequence[LearningRateMonitor], settings: GroupOptions | None) -> None:
    """Let monitors of learning rates see a step's."""
    trainer = loop.trainer
    groups = trainer.optimizers[0].param_groups
    present = [dict(group) for group in groups]
    for group, values in zip(groups, settings or (), strict=False):
        group.update(values)
    for monitor in monitors:
        monitor.on_train_batch_start(trainer, trainer.lightning_module, None, 0)
    for group, values in zip(groups, present, strict=True):
        group.update(values)
