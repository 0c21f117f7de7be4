"""Reports a damaged checkpoint before PyTorch fails on it."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.strategies import Strategy

from fl_lightning.checked_file import CheckedFile


class CheckedLoading:
    """Loads a checkpoint by the strategy's own method, and names a damaged file.

    Lightning says which file it reads only when it reads it, so that this stands in for ``strategy.load_checkpoint``.

    Args:
        strategy: The trainer's strategy.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._load = strategy.load_checkpoint

    @classmethod
    def install(cls, trainer: pl.Trainer) -> None:
        """Check the checkpoints that the trainer loads; once is enough."""
        if not isinstance(trainer.strategy.load_checkpoint, cls):
            trainer.strategy.load_checkpoint = cls(trainer.strategy)  # type: ignore[method-assign]

    def __call__(self, checkpoint_path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """Return the checkpoint.

        Raises:
            ValueError: If the file is not as it was written, or is no checkpoint.
        """
        path = Path(str(checkpoint_path))
        _check_sums(path)
        try:
            return self._load(checkpoint_path, *args, **options)
        except Exception as error:
            if path.is_file() and not zipfile.is_zipfile(path):
                raise ValueError(
                    f"`ckpt_path` {path} ({path.stat().st_size:,} bytes) is damaged, or no checkpoint: it cannot be "
                    "read. Give another checkpoint."
                ) from error
            raise


def _check_sums(path: Path) -> None:
    newest = path.with_name(f"{path.stem.removesuffix('.previous')}{path.suffix}")
    last = CheckedFile(newest)
    if not path.is_file() or last.is_intact(path):
        return
    other = last.previous if path == newest else newest
    hint = "Give another checkpoint."
    if last.is_intact(other):
        hint = f'{other.name} is whole: give that, or `ckpt_path="last"`, which takes it.'
    raise ValueError(f"`ckpt_path` {path} is damaged: its checksum is not in {last.checksums.name}. {hint}")
