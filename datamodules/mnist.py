"""MNIST, Fashion-MNIST and EMNIST's letters: grey images of 28x28 pixels in torchvision's files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset
from torchvision.datasets import EMNIST, MNIST, FashionMNIST

from fl_lightning.checks import check_arguments
from fl_lightning.data import PartitionFunction, Source
from fl_lightning.datamodules.files import FromTorchvision


class MNISTDataModule(FromTorchvision):
    """70,000 handwritten digits, training and test images together, distributed among clients.

    Inputs are float32 in [0, 1], shape (N, 1, 28, 28). ``SampleSplit(test="official")`` tests on the data set's own
    test images, which come last.

    Args:
        data_dir: Folder that holds the data set's folder (``MNIST/raw``) with the four files as torchvision unpacks
            them, or into which they are downloaded; if ``None`` the environment variable ``FL_LIGHTNING_DATA``, else
            ``data``.
        partitioner: Shares the samples out among clients.
        download: Whether to download the files when they are missing.
        **options: Further arguments of :class:`~fl_lightning.data.FederatedDataModule`.

    Raises:
        FileNotFoundError: At set-up, if there are no files.
        RuntimeError: At set-up, if a file is damaged or the download fails.
    """

    files: ClassVar[Any] = MNIST

    def paths(self) -> list[Path]:
        """Return the files as torchvision unpacks them."""
        names = [Path(url).stem for url, _ in self.files.resources]
        return [self.data_dir / self.files.__name__ / "raw" / name for name in names]

    def load(self) -> Source:
        """Read all images: training images, then test images."""
        (images, labels), (more, others) = (self.choose(part.data, part.targets) for part in self.read())
        x = torch.cat([images, more]).unsqueeze(1).to(torch.float32).div_(255)
        y = torch.cat([labels, others])
        return Source(
            TensorDataset(x, y),
            y.numpy().astype(np.int64),
            test_indices=np.arange(len(labels), len(x)),
            class_names=self.names_of_classes(),
            pools_test=True,
        )

    def choose(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images (n, 28, 28) and labels (n,) to use, out of those of a file."""
        return images, labels

    def names_of_classes(self) -> list[str]:
        """Return the name of each class."""
        return [name.split(" - ")[0] for name in self.files.classes]  # MNIST's are "0 - zero", ...


class FashionMNISTDataModule(MNISTDataModule):
    """Fashion-MNIST: 70,000 pictures of clothes in 10 classes; arguments as for :class:`MNISTDataModule`."""

    files = FashionMNIST


class EMNISTDataModule(MNISTDataModule):
    """EMNIST's letters: 145,600 handwritten letters in 26 classes, upright.

    Args:
        data_dir: As for :class:`MNISTDataModule`, with ``EMNIST/raw``.
        partitioner: Shares the samples out among clients.
        classes: ``"letters"`` for all, ``"first10"`` for a to j, 48,000 and 8,000 images (Acar et al. 2021).
        **options: Further arguments of :class:`MNISTDataModule`.

    Raises:
        ValueError: If ``classes`` is unknown.
    """

    files = EMNIST
    file_options: ClassVar[dict[str, Any]] = {"split": "letters"}

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        partitioner: PartitionFunction | None = None,
        *,
        classes: Literal["letters", "first10"] = "letters",
        **options: Any,
    ) -> None:
        super().__init__(data_dir, partitioner, **options)
        self.classes = classes
        self.num_classes = 10 if classes == "first10" else 26
        check_arguments(self)

    def paths(self) -> list[Path]:
        """Return the files as torchvision unpacks them."""
        kinds = ("images-idx3", "labels-idx1")
        names = [f"emnist-letters-{part}-{kind}-ubyte" for part in ("train", "test") for kind in kinds]
        return [self.data_dir / "EMNIST" / "raw" / name for name in names]

    def choose(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the chosen letters, counted from 0; the files hold them transposed and counted from 1."""
        kept = labels <= self.num_classes
        return images[kept].transpose(1, 2), labels[kept] - 1

    def names_of_classes(self) -> list[str]:
        """Return a, b, c, ..."""
        return [chr(ord("a") + letter) for letter in range(self.num_classes)]
