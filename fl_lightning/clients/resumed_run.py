"""Compares a resumed run with its checkpoint, once the optimizers are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from fl_lightning.representation import short
from fl_lightning.sentences import LOAD_WEIGHTS


@dataclass
class ResumedRun:
    """The run that wrote a checkpoint.

    Attributes:
        other_settings: A sentence on the settings that differ; empty if none do.
        optimizers: Its optimizers, as :func:`describe_optimizers` describes them.
    """

    other_settings: str = ""
    optimizers: Sequence[tuple[str, dict[str, str]]] = field(default_factory=list)

    def compare(self, trainer: pl.Trainer) -> None:
        """Say which settings differ.

        Raises:
            ValueError: If the module has optimizers of other classes, which cannot take the checkpoint's state.
        """
        present = describe_optimizers(trainer)
        before, now = ([kind for kind, _ in each] for each in (self.optimizers, present))
        if before and before != now:
            raise ValueError(
                f"The checkpoint has the state of {', '.join(before)}, and `configure_optimizers` now returns "
                f"{', '.join(now)}, which cannot use it. Resume with the same optimizers. To go on from the weights "
                f"alone: {LOAD_WEIGHTS}."
            )
        changes = [
            f"{name} {given[name]} (given: {text})"
            for (_, given), (_, own) in zip(self.optimizers, present, strict=False)
            for name, text in own.items()
            if name in given and given[name] != text
        ]
        if changes:
            rank_zero_info(f"Optimizers go on with the checkpoint's settings: {', '.join(changes)}.")
        if self.other_settings:
            rank_zero_info(self.other_settings)


def describe_optimizers(trainer: pl.Trainer) -> list[tuple[str, dict[str, str]]]:
    """Return the class of each optimizer, and the settings with which it was made."""
    described: list[tuple[str, dict[str, str]]] = []
    for optimizer in trainer.optimizers:
        defaults: dict[str, Any] = getattr(optimizer, "defaults", {})
        described.append((type(optimizer).__name__, {name: short(value) for name, value in defaults.items()}))
    return described
