"""Places of the data modules' files, downloads, and the data sets that torchvision reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning.data import FederatedDataModule, PartitionFunction, Source
from fl_lightning.files import ENVIRONMENT_VARIABLE, data_folder
from fl_lightning.settings import check, check_arguments


def resolve_data_dir(data_dir: str | os.PathLike[str] | None) -> Path:
    """Return the folder of data files: the argument, else the environment variable ``FL_LIGHTNING_DATA``, else data."""
    return data_folder() if data_dir is None else as_path("data_dir", data_dir)


def as_path(name: str, value: str | os.PathLike[str]) -> Path:
    """Return an argument as a path.

    Raises:
        TypeError: If it is neither a path nor a string.
        ValueError: If it is an empty string.
    """
    path: str | os.PathLike[str] = check(f"`{name}`", value, str | os.PathLike)
    return Path(path)


def where_to_put(files: str, folder: Path, *, download: bool = False) -> str:
    """Return in a sentence how to get a data set's files into their folder, which is one of those in ``data_dir``."""
    hint = (
        f"Put {files} into {folder}, or name the folder above by `data_dir` or the environment variable "
        f"{ENVIRONMENT_VARIABLE}."
    )
    if download:
        hint += " `download=True` downloads them in `prepare_data()`."
    return hint


def fetch(url: str, path: Path, hint: str) -> None:
    """Download a file, which appears whole or not at all.

    Raises:
        RuntimeError: If that fails, with the hint.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path))
    except OSError as error:
        raise RuntimeError(f"{url} could not be downloaded ({error}). {hint}") from None


@contextmanager
def reading(files: object, kind: str) -> Iterator[None]:
    """Let errors in the block, which reads files of a kind, name the files.

    Raises:
        FileNotFoundError: If there is no such file.
        RuntimeError: For any other error.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"There is no file {error.filename or files}, which must be {kind}.") from error
    # Parsers raise exceptions of many kinds for files that are damaged, cut off or of another kind.
    except Exception as error:
        raise RuntimeError(f"{files} cannot be read as {kind}: {str(error).strip()}") from error


class FromTorchvision(FederatedDataModule):
    """A training and a test set that torchvision downloads and reads.

    Args:
        data_dir: Folder of the files.
        partitioner: Shares the samples out among clients.
        download: Whether to download the files when they are missing.
        **options: Further arguments of the other base class.
    """

    #: The class of torchvision.
    files: ClassVar[type]
    #: Its arguments.
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
        if self._is_there():
            return
        archive = self.data_dir / getattr(self.files, "filename", "no archive")
        if not self.download and not archive.exists():
            return
        try:
            self.files(self.data_dir, download=True, **self.file_options)
        except (OSError, RuntimeError) as error:
            raise RuntimeError(f"{self.files.__name__} could not be downloaded ({error}). {self._hint()}") from None

    def samples(self, part: Any) -> tuple[Tensor, Tensor]:
        """Return the images and the classes, int64, shape (n,), of a training or test set of torchvision."""
        return torch.as_tensor(part.data), torch.as_tensor(part.targets)

    def as_inputs(self, images: Tensor) -> Tensor:
        """Return all images, which torchvision holds as bytes, as a module gets them, shape (N, C, H, W)."""
        raise NotImplementedError

    def targets_of(self, labels: np.ndarray, names: list[str]) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Return the targets, the classes by which a partitioner shares images out, and the names of the latter."""
        return labels, labels, names

    def load(self) -> Source:
        """Read all images: training images, then test images.

        Raises:
            FileNotFoundError: If a file is not there.
            RuntimeError: If a file is damaged.
        """
        if not self._is_there():
            raise FileNotFoundError(f"There is no whole {self.files.__name__} in {self.data_dir}. {self._hint()}")
        with reading(f"A file in {self.paths()[0].parent}", self.files.__name__):
            train = self.files(self.data_dir, train=True, **self.file_options)
            test = self.files(self.data_dir, train=False, **self.file_options)
        images, classes = self.samples(train)
        test_images, test_classes = self.samples(test)
        all_images = torch.cat([images, test_images])
        all_classes = torch.cat([classes, test_classes])
        # The names of MNIST's classes are "0 - zero" and so on.
        names = [name.split(" - ")[0] for name in train.classes]
        targets, labels, names = self.targets_of(all_classes.numpy(), names)
        dataset = TensorDataset(self.as_inputs(all_images), torch.from_numpy(targets))
        test_indices = np.arange(len(images), len(all_images))
        return Source(dataset, labels, test_indices, names, pools_test=True)

    def _is_there(self) -> bool:
        return all(path.exists() for path in self.paths())

    def _hint(self) -> str:
        first = self.paths()[0]
        files = f"{first.name} and the other files, as torchvision unpacks them,"
        return where_to_put(files, first.parent, download=True)
