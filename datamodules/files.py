"""Places of the data modules' files, and the data sets that torchvision downloads and reads."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any, ClassVar

from fl_lightning.checks import check, check_arguments
from fl_lightning.data import FederatedDataModule, PartitionFunction
from fl_lightning.files import ENVIRONMENT_VARIABLE, data_folder

UNREADABLE = (OSError, EOFError, ValueError, zlib.error)
"""Errors that readers of tables raise when a file is damaged, cut off or of another kind."""


def resolve_data_dir(data_dir: str | os.PathLike[str] | None) -> Path:
    """Return the folder of data files: the argument, else the environment variable ``FL_LIGHTNING_DATA``, else data."""
    return data_folder() if data_dir is None else as_path("data_dir", data_dir)


def as_path(name: str, value: str | os.PathLike[str]) -> Path:
    """Return an argument as a path.

    Raises:
        TypeError: If it is neither a path nor a text.
        ValueError: If it is an empty text.
    """
    return Path(check(f"`{name}`", value, str | os.PathLike))


def where_to_put(files: str, folder: str, download: str = "") -> str:
    """Return in a sentence how to get a data set's files.

    Args:
        files: What to put where.
        folder: What ``data_dir`` names.
        download: What the class can do with network access; an empty text if nothing, or if it was tried.
    """
    otherwise = f"; with network access, {download} in `prepare_data()`" if download else ""
    return f"Put {files}, or name {folder} by `data_dir` or the environment variable {ENVIRONMENT_VARIABLE}{otherwise}."


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


class FromTorchvision(FederatedDataModule):
    """A training and a test set that torchvision downloads and reads.

    Args:
        data_dir: Folder of the files.
        partitioner: Shares the samples out among clients.
        download: Whether to download the files when they are missing.
        **options: Further arguments of the other base class.
    """

    files: ClassVar[Any]
    file_options: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        partitioner: PartitionFunction | None = None,
        *,
        download: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(partitioner, **options)
        self.data_dir = resolve_data_dir(data_dir)
        self.download = download
        check_arguments(self)

    def paths(self) -> list[Path]:
        """Return the files as torchvision unpacks them."""
        raise NotImplementedError

    def prepare_data(self) -> None:
        """Download the files, or unpack an archive that is there, unless they are there."""
        if self._is_there() or not (self.download or self._archive().exists()):
            return
        try:
            self.files(self.data_dir, download=True, **self.file_options)
        except (OSError, RuntimeError) as error:
            raise RuntimeError(f"{self._name} could not be downloaded ({error}). {self._hint()}") from None

    def read(self) -> tuple[Any, Any]:
        """Return training and test set as torchvision reads them.

        Raises:
            FileNotFoundError: If a file is not there.
            RuntimeError: If a file is damaged.
        """
        if not self._is_there():
            hint = self._hint("`download=True` fetches them")
            raise FileNotFoundError(f"There is no whole {self._name} in {self.data_dir}. {hint}")
        try:
            train, test = (self.files(self.data_dir, train=train, **self.file_options) for train in (True, False))
        except (OSError, RuntimeError, ValueError, AssertionError) as error:
            raise RuntimeError(f"A file in {self.paths()[0].parent} is damaged. {self._hint()}") from error
        return train, test

    @property
    def _name(self) -> str:
        return str(self.files.__name__)

    def _is_there(self) -> bool:
        return all(path.exists() for path in self.paths())

    def _archive(self) -> Path:
        return self.data_dir / getattr(self.files, "filename", "no archive")

    def _hint(self, download: str = "") -> str:
        """Return what to do; a download that was tried is no hint."""
        first = self.paths()[0]
        files = f"{first.name} and the other files, as torchvision's {self._name} unpacks them, into {first.parent}"
        return where_to_put(files, "the folder above", download)
