"""Files of checkpoints: written whole into their own folder, and compared with their checksums when they are read.

Lightning writes a checkpoint through the system's temporary folder, and holds it in memory twice meanwhile. PyTorch
stores a checksum of each tensor in the file, and does not look at it. So a flipped bit would change a result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from typing_extensions import override

from fl_lightning.files import atomic_file, is_whole


class DamagedCheckpointError(RuntimeError):
    """The content of a checkpoint's file does not agree with its checksums."""


def before(path: Path) -> Path:
    """Return the file of the checkpoint that was kept before the one in ``path``."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def check_whole(path: Path) -> None:
    """Compare a checkpoint with its checksums.

    Raises:
        FileNotFoundError: If there is no file.
        DamagedCheckpointError: If it is damaged.
    """
    if not path.exists():
        raise FileNotFoundError(f"Checkpoint file not found: {path}")
    if not is_whole(path):
        raise DamagedCheckpointError(
            f"{path} is damaged: its content does not agree with its checksums. Take another one, or start again."
        )


def whole_or_before(path: Path) -> Path:
    """Return a checkpoint's file, or the one before it if this is damaged, with a warning.

    Raises:
        FileNotFoundError: If there is no file.
        DamagedCheckpointError: If it is damaged, and so is the one before.
    """
    try:
        check_whole(path)
    except DamagedCheckpointError as error:
        if not before(path).exists():
            raise
        if not is_whole(before(path)):
            raise DamagedCheckpointError(
                f"{error} {before(path).name}, the checkpoint before, is damaged too."
            ) from None
        rank_zero_warn(f"{path} is damaged. {before(path).name}, the checkpoint before, takes its place.")
        return before(path)
    return path


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint on the CPU.

    Raises:
        FileNotFoundError: If there is no file.
        DamagedCheckpointError: If it is damaged.
    """
    check_whole(path)
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content


class WholeFiles(TorchCheckpointIO):
    """Writes a checkpoint whole or not at all, and reads none that is damaged.

    Args:
        is_whole_anyway: Whether the caller replaces the file at once when it is written, so that it is written straight
            to its place.
    """

    def __init__(self, *, is_whole_anyway: bool = False) -> None:
        super().__init__()
        self._is_whole_anyway = is_whole_anyway

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        # A remote store takes a file whole or not at all.
        if is_elsewhere(path) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        place = nullcontext(Path(path)) if self._is_whole_anyway else atomic_file(Path(path))
        with place as written:
            try:
                with written.open("wb") as file:
                    torch.save(checkpoint, file)
            except RuntimeError as error:
                # A full disk.
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise

    @override
    def load_checkpoint(self, path: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        return super().load_checkpoint(
            path if is_elsewhere(path) else whole_or_before(Path(path)), *arguments, **options
        )


def is_elsewhere(path: Any) -> bool:
    """Return whether a path names a store that is no folder."""
    return "://" in str(path)


def use_whole_files(trainer: pl.Trainer) -> None:
    """Let a trainer write and read its checkpoints by :class:`WholeFiles`, unless it was given a plugin for that."""
    strategy, plugin = trainer.strategy, trainer.strategy.checkpoint_io
    if type(plugin) is TorchCheckpointIO:
        strategy.checkpoint_io = WholeFiles()
        return
    while isinstance(plugin, _WrappingCheckpointIO):  # such as one that writes in a thread
        if type(plugin.checkpoint_io) is TorchCheckpointIO:
            plugin._checkpoint_io = WholeFiles()
        plugin = plugin.checkpoint_io  # type: ignore[assignment]


def save_whole(trainer: pl.Trainer, path: Path, *, keep_previous: bool) -> None:
    """Save a checkpoint whole or not at all, before this returns; call it on all processes.

    Args:
        trainer: The trainer.
        path: The file.
        keep_previous: Whether what ``path`` held becomes the checkpoint before.
    """
    if not trainer.is_global_zero:
        trainer.save_checkpoint(path, weights_only=False)  # takes part, and writes nothing
        return
    with atomic_file(path) as temporary, _written_directly(trainer):
        trainer.save_checkpoint(temporary, weights_only=False)
        if keep_previous and path.exists():
            path.replace(before(path))


@contextmanager
def _written_directly(trainer: pl.Trainer) -> Iterator[None]:
    """Let ``save_checkpoint`` write to the very path that it is given, in this thread."""
    strategy, usual = trainer.strategy, trainer.strategy.checkpoint_io
    plugin = usual
    while isinstance(plugin, _WrappingCheckpointIO):
        plugin = plugin.checkpoint_io  # type: ignore[assignment]
    strategy.checkpoint_io = WholeFiles(is_whole_anyway=True) if type(plugin) is WholeFiles else plugin
    try:
        yield
    finally:
        strategy.checkpoint_io = usual
