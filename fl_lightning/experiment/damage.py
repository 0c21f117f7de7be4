"""Damaged files of a cell are put aside, so that the cell can start again."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint

from fl_lightning.experiment.callbacks import read_rounds
from fl_lightning.experiment.files import read_json

Note = Callable[[str], None]
"""Takes a line for the user."""
_UNREADABLE = (RuntimeError, EOFError, ValueError, KeyError, TypeError, AttributeError, pickle.UnpicklingError)


class DamagedFileError(ValueError):
    """A file of a cell cannot be read.

    Args:
        path: The file.
        reason: What is wrong with it.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path


def put_aside(path: Path) -> Path:
    """Rename a file to ``<name>.damaged``, or with a number if there is such a file, and return its new path."""
    target, number = path.with_name(f"{path.name}.damaged"), 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.damaged-{number}")
    return path.rename(target)


def read_content(path: Path, keys: set[str]) -> dict[str, Any]:
    """Return the content of a JSON file that must be a mapping with some keys.

    Raises:
        DamagedFileError: If it is not.
    """
    try:
        content = read_json(path)
    except ValueError as error:  # of JSON and of UTF-8
        what = "is empty" if path.stat().st_size == 0 else f"cannot be read ({error})"
        raise DamagedFileError(path, what) from error
    missing = keys - set(content) if isinstance(content, dict) else keys
    if missing:
        raise DamagedFileError(path, f"has no {', '.join(sorted(missing))}")
    return dict(content)


def checkpoint_to_resume(folder: Path, best: ModelCheckpoint | None, note: Note) -> Path | None:
    """Return the checkpoint from which the fit of a cell goes on; ``None`` if the fit starts at its beginning.

    A checkpoint that cannot be used is put aside, and so is the curve that belongs to it.

    Args:
        folder: Folder of the cell.
        best: The callback that keeps the best model of the fit, if there is one.
        note: Takes a line for the user.
    """
    last, curve = folder / "last.ckpt", folder / "curve.jsonl"
    if not last.exists():
        return None
    try:
        _check(last, curve, best)
    except DamagedFileError as damage:
        kept = [put_aside(path).name for path in (last, curve) if path.exists()]
        note(f"{damage}, so the cell starts again. The old files are now {' and '.join(kept)} in the same folder.")
        return None
    return last


def _check(last: Path, curve: Path, best: ModelCheckpoint | None) -> None:
    checkpoint = _load(last)
    if not {"epoch", "callbacks"} <= checkpoint.keys():
        raise DamagedFileError(last, "is no checkpoint of a fit")
    rounds = [row.get("round") for row in read_rounds(curve)]
    done = int(checkpoint["epoch"]) + 1
    if rounds[:done] != list(range(1, done + 1)):
        raise DamagedFileError(curve, f"lacks some of the {done} rounds before the checkpoint")
    if best is None:
        return
    state = checkpoint["callbacks"].get(best.state_key)
    if state is None:
        raise DamagedFileError(last, "was written by another version, and does not know the best model so far")
    if state["dirpath"] != best.dirpath:
        raise DamagedFileError(last, f"was written in another folder, {state['dirpath']}")
    if state["best_model_path"]:
        _load(Path(state["best_model_path"]))


def _load(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint."""
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise DamagedFileError(path, "is missing") from error
    except (OSError, *_UNREADABLE) as error:
        # torch seeks behind the end of a file that was cut off; the file may be whole after other errors of the system
        of_system = isinstance(error, OSError) and error.errno != errno.EINVAL
        if of_system or "allocate memory" in str(error):
            raise
        what = "is empty" if path.stat().st_size == 0 else f"cannot be read ({_first_line(error)})"
        raise DamagedFileError(path, what) from error
    if not isinstance(content, dict):
        raise DamagedFileError(path, f"holds {type(content).__name__}, not a checkpoint")
    return content


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if len(lines[0]) <= 100 else f"{lines[0][:99]}…"
