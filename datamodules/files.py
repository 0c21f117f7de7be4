"""Places of the data modules' files, and checks that they are whole."""

from __future__ import annotations

import hashlib
import os
import zlib
from pathlib import Path
from typing import Any

from fl_lightning.arguments import check_path
from fl_lightning.files import ENVIRONMENT_VARIABLE, data_folder
from fl_lightning.partitioners import Partitioner

UNREADABLE = (OSError, EOFError, ValueError, zlib.error)
"""Errors that readers of tables raise when a file is damaged, cut off or of another kind."""


class TorchvisionFiles:
    """A class attribute that holds one of torchvision's data sets, which is imported when it is first asked for.

    Args:
        name: Name of the class in ``torchvision.datasets``.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        """Return the class."""
        from torchvision import datasets

        return getattr(datasets, self.name)


def resolve_data_dir(data_dir: str | os.PathLike[str] | None) -> Path:
    """Return the folder of data files: the argument, else the environment variable ``FL_LIGHTNING_DATA``, else data."""
    return data_folder() if data_dir is None else as_path("data_dir", data_dir)


def as_path(name: str, value: str | os.PathLike[str], hint: str = "") -> Path:
    """Return an argument as a path.

    Args:
        name: The argument's name, for errors.
        value: The argument.
        hint: The way out, where it is neither a path nor a partitioner.

    Raises:
        TypeError: If it is neither a path nor a text.
        ValueError: If it is an empty text.
    """
    check_path(name, value, "A partitioner is the argument `partitioner`." if isinstance(value, Partitioner) else hint)
    return Path(value)


def where_to_put(files: str, folder: str, download: str = "") -> str:
    """Return in a sentence how to get a data set's files.

    Args:
        files: What to put where.
        folder: What ``data_dir`` names.
        download: What the class can do with network access; an empty text if nothing, or if it was tried.
    """
    otherwise = f"; with network access, {download} in `prepare_data()`" if download else ""
    return f"Put {files}, or name {folder} by `data_dir` or the environment variable {ENVIRONMENT_VARIABLE}{otherwise}."


def check_md5(path: Path, expected: str) -> None:
    """Raise ``RuntimeError`` unless the file has the expected MD5 sum (32 hexadecimal digits)."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    found = digest.hexdigest()
    if found != expected:
        raise RuntimeError(f"{path} is damaged: its MD5 sum is {found}, expected {expected}. Delete and refetch it.")
