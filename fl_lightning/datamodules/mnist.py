"""MNIST, Fashion-MNIST and EMNIST's letters: grey images of 28x28 pixels in torchvision's files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torchvision.datasets import EMNIST, MNIST, FashionMNIST

from fl_lightning.data import PartitionFunction
from fl_lightning.datamodules.files import FromTorchvision
from fl_lightning.partitioners import PowerLawPartitioner
from fl_lightning.settings import check_arguments


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

    Example:
        >>> from fl_lightning.partitioners import IIDPartitioner
        >>> data = MNISTDataModule("data", IIDPartitioner(100), batch_size=10)
        >>> trainer.fit(module, datamodule=data)  # doctest: +SKIP
    """

    files: ClassVar[type] = MNIST
    parts: ClassVar[tuple[str, str]] = ("train", "t10k")
    """How the names of the files of the training and the test set begin."""

    def paths(self) -> list[Path]:
        """Return the files as torchvision unpacks them."""
        folder = self.data_dir / self.files.__name__ / "raw"
        paths = []
        for part in self.parts:
            paths.append(folder / f"{part}-images-idx3-ubyte")
            paths.append(folder / f"{part}-labels-idx1-ubyte")
        return paths

    def as_inputs(self, images: Tensor) -> Tensor:
        """Return the images in [0, 1], shape (N, 1, 28, 28)."""
        return images.unsqueeze(1).to(torch.float32).div_(255)


class FedProxMNISTDataModule(MNISTDataModule):
    """MNIST as in FedProx's experiments: each pixel is standardised, and sizes follow a power law (Li et al. 2020).

    A pixel of all 70,000 images has mean 0, and its deviation from it is divided by the standard deviation of bytes
    plus 0.001.

    Args:
        data_dir: As for :class:`MNISTDataModule`.
        partitioner: Shares the samples out among clients; ``PowerLawPartitioner(1000)`` if ``None``.
        **options: Further arguments of :class:`MNISTDataModule`.

    Example:
        >>> from fl_lightning.data import WithinClientSplit
        >>> data = FedProxMNISTDataModule("data", split=WithinClientSplit(val=0.0, test=0.1), batch_size=10)
        >>> trainer.fit(module, datamodule=data)  # doctest: +SKIP
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        partitioner: PartitionFunction | None = None,
        **options: Any,
    ) -> None:
        if partitioner is None:
            partitioner = PowerLawPartitioner(1000)
        super().__init__(data_dir, partitioner, **options)

    def as_inputs(self, images: Tensor) -> Tensor:
        """Return the standardised images, shape (N, 1, 28, 28)."""
        values = images.to(torch.float32)
        deviations, means = torch.std_mean(values, dim=0, correction=0)
        return ((values - means) / (deviations + 0.001)).unsqueeze(1)


class FashionMNISTDataModule(MNISTDataModule):
    """Fashion-MNIST: 70,000 pictures of clothes in 10 classes; arguments as for :class:`MNISTDataModule`.

    Example:
        >>> from fl_lightning.partitioners import PathologicalPartitioner
        >>> partitioner = PathologicalPartitioner(100, num_classes_per_partition=2)
        >>> data = FashionMNISTDataModule("data", partitioner)
        >>> trainer.fit(module, datamodule=data)  # doctest: +SKIP
    """

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

    Example:
        >>> from fl_lightning.partitioners import IIDPartitioner
        >>> data = EMNISTDataModule("data", IIDPartitioner(100), classes="first10")
        >>> trainer.fit(module, datamodule=data)  # doctest: +SKIP
    """

    files = EMNIST
    parts = ("emnist-letters-train", "emnist-letters-test")
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

    def samples(self, part: Any) -> tuple[Tensor, Tensor]:
        """Return the chosen letters, counted from 0; the files hold them transposed and counted from 1."""
        images: Tensor = part.data
        classes: Tensor = part.targets
        kept = classes <= self.num_classes
        return images[kept].transpose(1, 2), classes[kept] - 1

    def targets_of(self, labels: np.ndarray, names: list[str]) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Return targets, classes and their names: torchvision's begin with one for 0."""
        return labels, labels, names[1 : self.num_classes + 1]
