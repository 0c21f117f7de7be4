"""CIFAR-10 and CIFAR-100: 60,000 colour images of 32x32 pixels in 10 or 100 classes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import TensorDataset

from datamodules.files import TorchvisionFiles, check_md5, resolve_data_dir, where_to_put
from fl_lightning.arguments import check_bool
from fl_lightning.data import ImageDataModule, PartitionFunction, Source
from fl_lightning.data.images import channel_numbers


class CIFAR10DataModule(ImageDataModule):
    """Training and test images together, 6,000 a class, distributed among clients.

    ``SampleSplit(test="official")`` tests on CIFAR-10's own test images, the last 10,000. Images are normalised by
    mean (0.4914, 0.4822, 0.4465) and standard deviation (0.2023, 0.1994, 0.2010).

    Args:
        data_dir: Folder that holds ``cifar-10-batches-py`` or ``cifar-10-python.tar.gz``, or into which they are
            downloaded; if ``None`` the environment variable ``FL_LIGHTNING_DATA``, else ``data``.
        partitioner: Shares the samples out among clients.
        augment: Whether training images are flipped and shifted by up to 4 pixels at random.
        mean: Mean of each channel by which images are normalised, after division by 255; default: as above.
        std: Standard deviation of each channel, likewise.
        download: Whether to download the files when they are missing.
        **options: Further arguments of :class:`~fl_lightning.data.ImageDataModule`, as ``crop_probability``.

    Raises:
        ValueError: If an argument is out of range.
        FileNotFoundError: At set-up, if there are no files.
        RuntimeError: At set-up, if a file is damaged or the download fails.
    """

    mean: ClassVar[tuple[float, ...]] = (0.4914, 0.4822, 0.4465)
    std: ClassVar[tuple[float, ...]] = (0.2023, 0.1994, 0.2010)
    files: ClassVar[Any] = TorchvisionFiles("CIFAR10")
    label_key: ClassVar[str] = "labels"
    num_train: ClassVar[int] = 50_000
    num_images: ClassVar[int] = 60_000

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        partitioner: PartitionFunction | None = None,
        *,
        augment: bool = False,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        download: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(partitioner, augment=augment, **options)
        if mean is not None:
            self.mean = channel_numbers("mean", mean, 3)  # type: ignore[misc]
        if std is not None:
            self.std = channel_numbers("std", std, 3)  # type: ignore[misc]
        check_bool("download", download)
        self.data_dir = resolve_data_dir(data_dir)
        self.download = download

    def prepare_data(self) -> None:
        """Unpack the archive, or download it, unless the files are there."""
        from torchvision.datasets import utils

        if self._missing() is None:
            return
        archive = self.data_dir / self.files.filename
        if archive.exists():
            check_md5(archive, self.files.tgz_md5)
            utils.extract_archive(str(archive), str(self.data_dir))
        elif self.download:
            try:
                utils.download_and_extract_archive(
                    self.files.url, self.data_dir, filename=archive.name, md5=self.files.tgz_md5
                )
            except (OSError, RuntimeError) as error:
                way_out = self._way_out(tried=True)
                raise RuntimeError(f"{self._name} could not be downloaded ({error}). {way_out}") from error

    def load(self) -> Source:
        """Read all images as bytes, shape (60000, 3, 32, 32): training images, then test images."""
        missing = self._missing()
        if missing is not None:
            raise FileNotFoundError(f"There is no {missing}. {self._way_out()}")
        # filled file by file: joining them at the end would hold everything twice
        images = np.empty((self.num_images, 3, 32, 32), dtype=np.uint8)
        labels = np.empty(self.num_images, dtype=np.int64)
        start = 0
        for name, md5 in (*self.files.train_list, *self.files.test_list):
            content = self._read(name, md5)
            rows = slice(start, start + len(content["data"]))
            images[rows] = content["data"].reshape(-1, 3, 32, 32)
            labels[rows] = content[self.label_key]
            start = rows.stop
        names = self._read(self.files.meta["filename"], self.files.meta["md5"])[self.files.meta["key"]]
        return Source(
            TensorDataset(torch.from_numpy(images), torch.from_numpy(labels)),
            labels,
            test_indices=np.arange(self.num_train, self.num_images),
            class_names=names,
            pools_test=True,
        )

    @property
    def _name(self) -> str:
        return str({"CIFAR10": "CIFAR-10", "CIFAR100": "CIFAR-100"}.get(self.files.__name__, self.files.__name__))

    def _path(self, name: str) -> Path:
        return self.data_dir / str(self.files.base_folder) / name

    def _missing(self) -> Path | None:
        names = [name for name, _ in (*self.files.train_list, *self.files.test_list)]
        paths = [self._path(name) for name in (*names, self.files.meta["filename"])]
        return next((path for path in paths if not path.exists()), None)

    def _read(self, name: str, md5: str) -> dict[str, Any]:
        path = self._path(name)
        check_md5(path, md5)  # before unpickling, which may run whatever a file says
        with path.open("rb") as file:
            content: dict[str, Any] = pickle.load(file, encoding="latin1")
        return content

    def _way_out(self, *, tried: bool = False) -> str:
        """Return what to do; a download that was tried is no way out."""
        either = f"the folder {self.files.base_folder} or the archive {self.files.filename} (from {self.files.url})"
        download = "" if tried else "`download=True` fetches them"
        return where_to_put(f"{either} into {self.data_dir}", "their folder", download)


class CIFAR100DataModule(CIFAR10DataModule):
    """Training and test images together, 600 for each of the 100 fine classes, distributed among clients.

    As :class:`CIFAR10DataModule`, with ``cifar-100-python`` or ``cifar-100-python.tar.gz`` in ``data_dir``; normalised
    by mean (0.5071, 0.4867, 0.4408) and standard deviation (0.2675, 0.2565, 0.2761).
    """

    mean = (0.5071, 0.4867, 0.4408)
    std = (0.2675, 0.2565, 0.2761)
    files = TorchvisionFiles("CIFAR100")
    label_key = "fine_labels"
