"""CIFAR-10: 60,000 colour images of 32x32 pixels in 10 classes."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset
from torchvision.datasets import CIFAR10, utils

from datamodules.files import ENVIRONMENT_VARIABLE, check_md5, resolve_data_dir
from fl_lightning.data import ImageDataModule, PartitionFunction, Source

IMAGES_PER_FILE = 10_000


class CIFAR10DataModule(ImageDataModule):
    """Training and test images together, 6,000 a class, shared out among clients.

    ``SampleSplit(test="official")`` tests on CIFAR-10's own test images, the last 10,000. Images are normalised by
    mean (0.4914, 0.4822, 0.4465) and standard deviation (0.2023, 0.1994, 0.2010).

    Args:
        data_dir: Folder that holds ``cifar-10-batches-py`` or ``cifar-10-python.tar.gz``, or into which they are
            downloaded; if ``None`` the environment variable ``FL_LIGHTNING_DATA``, else ``data``.
        partitioner: Shares the samples out among clients.
        augment: Whether training images are flipped and shifted by up to 4 pixels at random.
        download: Whether to download the files when they are missing.
        **options: Further arguments of :class:`~fl_lightning.data.FederatedDataModule`.

    Raises:
        FileNotFoundError: At set-up, if there are no files.
        RuntimeError: At set-up, if a file is damaged or the download fails.
    """

    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2023, 0.1994, 0.2010)

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        partitioner: PartitionFunction | None = None,
        *,
        augment: bool = False,
        download: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(partitioner, augment=augment, **options)
        self.data_dir = resolve_data_dir(data_dir)
        self.download = download

    def prepare_data(self) -> None:
        """Unpack the archive, or download it, unless the files are there."""
        if self._missing() is None:
            return
        archive = self.data_dir / CIFAR10.filename
        if archive.exists():
            check_md5(archive, CIFAR10.tgz_md5)
            utils.extract_archive(str(archive), str(self.data_dir))
        elif self.download:
            try:
                utils.download_and_extract_archive(
                    CIFAR10.url, self.data_dir, filename=archive.name, md5=CIFAR10.tgz_md5
                )
            except (OSError, RuntimeError) as error:
                raise RuntimeError(f"CIFAR-10 could not be downloaded ({error}). {self._way_out()}") from error

    def load(self) -> Source:
        """Read all images as bytes, shape (60000, 3, 32, 32): training images, then test images."""
        missing = self._missing()
        if missing is not None:
            raise FileNotFoundError(f"There is no {missing}. {self._way_out()}")
        files = (*CIFAR10.train_list, *CIFAR10.test_list)
        # filled file by file: joining them at the end would hold everything twice
        images = np.empty((len(files) * IMAGES_PER_FILE, 3, 32, 32), dtype=np.uint8)
        labels = np.empty(len(images), dtype=np.int64)
        for start, (name, md5) in zip(range(0, len(images), IMAGES_PER_FILE), files, strict=True):
            content = self._read(name, md5)
            images[start : start + IMAGES_PER_FILE] = content["data"].reshape(-1, 3, 32, 32)
            labels[start : start + IMAGES_PER_FILE] = content["labels"]
        names = self._read(CIFAR10.meta["filename"], CIFAR10.meta["md5"])[CIFAR10.meta["key"]]
        return Source(
            TensorDataset(torch.from_numpy(images), torch.from_numpy(labels)),
            labels,
            test_indices=np.arange(len(CIFAR10.train_list) * IMAGES_PER_FILE, len(images)),
            class_names=names,
        )

    def _path(self, name: str) -> Path:
        return self.data_dir / str(CIFAR10.base_folder) / name

    def _missing(self) -> Path | None:
        names = [name for name, _ in (*CIFAR10.train_list, *CIFAR10.test_list)]
        paths = [self._path(name) for name in (*names, CIFAR10.meta["filename"])]
        return next((path for path in paths if not path.exists()), None)

    def _read(self, name: str, md5: str) -> dict[str, Any]:
        path = self._path(name)
        check_md5(path, md5)  # before unpickling, which may run whatever a file says
        with path.open("rb") as file:
            content: dict[str, Any] = pickle.load(file, encoding="latin1")
        return content

    def _way_out(self) -> str:
        return (
            f"Put the folder {self.data_dir / CIFAR10.base_folder} or the archive {self.data_dir / CIFAR10.filename} "
            f"(from {CIFAR10.url}) there, or name their folder by `data_dir` or the environment variable "
            f"{ENVIRONMENT_VARIABLE}; with network access, `download=True` fetches them in `prepare_data()`."
        )
