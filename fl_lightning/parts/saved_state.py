"""Checks of the states that a fit saves or goes on from."""

from __future__ import annotations

from torch import Tensor

from fl_lightning.parts.federation import Federation


def check_whole(is_torn: bool) -> None:
    """Raise ``RuntimeError`` for a state between two rounds.

    Args:
        is_torn: Whether the end of a round has begun to change the state and has failed.
    """
    if is_torn:
        raise RuntimeError(
            "The end of a round failed after states had begun to change, so the algorithm's state lies between two "
            "rounds. It is not saved, and no fit goes on from it. Resume from the last checkpoint with a new callback: "
            "`trainer.fit(..., ckpt_path=...)`. Without a checkpoint start anew, with a new Trainer."
        )


def check_size(saved: Tensor, federation: Federation) -> None:
    """Raise ``ValueError`` if a checkpoint's model, shape ``(size,)``, has another size than the module."""
    if saved.shape != federation.model.shape:
        raise ValueError(
            f"The checkpoint's server model has {saved.numel()} values, the module {federation.model.numel()}. "
            "Resume with the same module and the same frozen layers."
        )
