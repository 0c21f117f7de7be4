"""CIFAR-10 and CIFAR-100: 60,000 colour images of 32x32 pixels in 10 or 100 classes."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor
from torchvision.datasets import CIFAR10, CIFAR100

from fl_lightning.data import ImageDataModule, PartitionFunction
from fl_lightning.data.images import channel_numbers
from fl_lightning.datamodules.files import FromTorchvision
from fl_lightning.settings import check_arguments


class CIFAR10DataModule(FromTorchvision, ImageDataModule):
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
        **options: Further arguments of :class:`~fl_lightning.data.ImageDataModule`, as ``crop_probability`` and
            ``crop_padding_mode``.

    Raises:
        ValueError: If an argument is out of range.
        FileNotFoundError: At set-up, if there are no files.
        RuntimeError: At set-up, if a file is damaged or the download fails.

    Example:
        >>> from fl_lightning.partitioners import QPPartitioner
        >>> partitioner = QPPartitioner(100, size_alpha=1.0, class_alpha=0.1)
        >>> data = CIFAR10DataModule("data", partitioner, augment=True, batch_size=16)
        >>> trainer.fit(module, datamodule=data)  # doctest: +SKIP
    """

    mean: ClassVar[tuple[float, ...]] = (0.4914, 0.4822, 0.4465)
    std: ClassVar[tuple[float, ...]] = (0.2023, 0.1994, 0.2010)
    files: ClassVar[Any] = CIFAR10

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
        super().__init__(data_dir, partitioner, download=download, augment=augment, **options)
        if mean is not None:
            self.mean = channel_numbers("mean", mean, 3)  # type: ignore[misc]
        if std is not None:
            self.std = channel_numbers("std", std, 3)  # type: ignore[misc]

    def paths(self) -> list[Path]:
        """Return the files as torchvision unpacks them."""
        folder = self.data_dir / self.files.base_folder
        names = [name for name, _ in self.files.train_list + self.files.test_list]
        names.append(self.files.meta["filename"])
        return [folder / name for name in names]

    def as_inputs(self, images: Tensor) -> Tensor:
        """Return the images as bytes, shape (60000, 3, 32, 32)."""
        return images.permute(0, 3, 1, 2).contiguous()


class CIFAR100DataModule(CIFAR10DataModule):
    """Training and test images together, 600 for each of the 100 fine classes, distributed among clients.

    As :class:`CIFAR10DataModule`, with ``cifar-100-python`` or ``cifar-100-python.tar.gz`` in ``data_dir``; normalised
    by mean (0.5071, 0.4867, 0.4408) and standard deviation (0.2675, 0.2565, 0.2761).

    Args:
        data_dir: As for :class:`CIFAR10DataModule`.
        partitioner: Shares the samples out among clients.
        labels: What a model predicts: the 100 ``"fine"`` classes, or the 20 ``"coarse"`` ones, each of five fine ones.
        partition_labels: The classes that the partitioner goes by, the same if ``None``: by ``"coarse"`` ones a client
            has fine classes that are alike.
        **options: Further arguments of :class:`CIFAR10DataModule`.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> from fl_lightning.partitioners import DirichletPartitioner
        >>> data = CIFAR100DataModule("data", DirichletPartitioner(100, alpha=0.3), labels="coarse")
        >>> trainer.fit(module, datamodule=data)  # doctest: +SKIP
    """

    mean = (0.5071, 0.4867, 0.4408)
    std = (0.2675, 0.2565, 0.2761)
    files = CIFAR100
    stored_as: ClassVar[Mapping[str, str]] = {"labels": "target_labels"}

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        partitioner: PartitionFunction | None = None,
        *,
        labels: Literal["fine", "coarse"] = "fine",
        partition_labels: Literal["fine", "coarse"] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(data_dir, partitioner, **options)
        check_arguments(self, {"labels": labels, "partition_labels": partition_labels})
        self.target_labels = labels
        self.partition_labels = partition_labels

    def targets_of(self, labels: np.ndarray, names: list[str]) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Return the targets, the classes by which a partitioner shares images out, and the names of the latter."""
        if "coarse" not in (self.target_labels, self.partition_labels):
            return labels, labels, names
        # torchvision has checked the files, but leaves the coarse classes out.
        contents = [pickle.loads(path.read_bytes(), encoding="latin1") for path in self.paths()]
        train, test, meta = contents
        coarse = np.array(train["coarse_labels"] + test["coarse_labels"], dtype=np.int64)
        coarse_names = meta["coarse_label_names"]
        targets = coarse if self.target_labels == "coarse" else labels
        if (self.partition_labels or self.target_labels) == "coarse":
            return targets, coarse, coarse_names
        return targets, labels, names
