"""Checks of the states that a fit saves or goes on from."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fl_lightning.parts.federation import Federation
from fl_lightning.parts.part import Part


def check_whole(is_half_changed: bool, parts: Sequence[Part], federation: Federation) -> None:
    """Look at the state of a fit that goes on or is saved.

    Args:
        is_half_changed: Whether the end of a round has begun to change the state and has failed.
        parts: All parts of the algorithm.
        federation: That of the fit.

    Raises:
        RuntimeError: If the state lies between two rounds.
        ValueError: If a part keeps the state of another callback's fit.
    """
    if is_half_changed:
        raise RuntimeError(
            "The end of a round failed after states had begun to change, so the algorithm's state lies between two "
            "rounds. It is not saved, and no fit goes on from it. Resume from the last checkpoint with a new callback: "
            "`trainer.fit(..., ckpt_path=...)`. Without a checkpoint start anew, with a new Trainer."
        )
    for part in parts:
        if part.keeps_another_fit(federation):
            raise ValueError(
                f"{part!r} no longer has the state of this fit: another callback has this part, too, and has trained "
                "since then. Give each callback a part of its own, or go on from a checkpoint that was written "
                "before: `trainer.fit(..., ckpt_path=...)`."
            )


def check_size(saved: Tensor, federation: Federation) -> None:
    """Raise ``ValueError`` if a checkpoint's model, shape ``(size,)``, has another size than the module."""
    if saved.shape != federation.model.shape:
        raise ValueError(
            f"The checkpoint's server model has {saved.numel()} values, the module {federation.model.numel()}. "
            "Resume with the same module and the same frozen layers."
        )


def check_clients(before: Federation, now: Federation) -> None:
    """Raise ``ValueError`` if a fit that goes on has other clients than the one before, or a module of another size."""
    if len(before.sizes) != len(now.sizes) or (before.sizes != now.sizes).any():
        raise ValueError(
            f"An earlier fit with this callback trained {len(before.sizes)} clients. Now there are "
            f"{len(now.sizes)} clients, or their sizes differ. Give the Trainer a new callback for new data."
        )
    if before.model.shape != now.model.shape:
        raise ValueError(
            f"An earlier fit with this callback trained a module of {before.model.numel()} values. Now it has "
            f"{now.model.numel()}. Give the Trainer a new callback for a new module."
        )
