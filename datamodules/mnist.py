"""MNIST, Fashion-MNIST and EMNIST's letters: grey images of 28x28 pixels in torchvision's files."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from datamodules.files import TorchvisionFiles, check_md5, resolve_data_dir, where_to_put
from fl_lightning.arguments import check_bool, check_choice
from fl_lightning.data import FederatedDataModule, PartitionFunction, Source


class MNISTDataModule(FederatedDataModule):
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

    files: ClassVar[Any] = TorchvisionFiles("MNIST")
    checksums: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    }
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
        check_bool("download", download)
        self.data_dir = resolve_data_dir(data_dir)
        self.download = download

    def prepare_data(self) -> None:
        """Download the files, unless they are there."""
        if not self.download or self._is_there():
            return
        try:
            self.files(self.data_dir, download=True, **self.file_options)
        except (OSError, RuntimeError) as error:
            raise RuntimeError(
                f"{self._name} could not be downloaded ({error}). {self._way_out(tried=True)}"
            ) from error

    def load(self) -> Source:
        """Read all images: training images, then test images."""
        parts = self._read()
        chosen = [self.choose(part.data, part.targets) for part in parts]
        images = torch.cat([images for images, _ in chosen]).unsqueeze(1).to(torch.float32).div_(255)
        labels = torch.cat([labels for _, labels in chosen])
        return Source(
            TensorDataset(images, labels),
            labels.numpy().astype(np.int64),
            test_indices=np.arange(len(chosen[0][1]), len(images)),
            class_names=self.names_of_classes(),
            pools_test=True,
        )

    def _read(self) -> list[Any]:
        """Return training and test set as torchvision reads them."""
        if not self._is_there():
            raise FileNotFoundError(f"There is no whole {self._name} in {self.data_dir}. {self._way_out()}")
        raw = self.data_dir / self._name / "raw"
        for name, md5 in self.checksums.items():
            check_md5(raw / name, md5)
        try:
            parts = [self.files(self.data_dir, train=train, **self.file_options) for train in (True, False)]
        except (OSError, RuntimeError, ValueError, AssertionError) as error:
            raise RuntimeError(f"A file in {raw} is damaged. {self._way_out()}") from error
        if any(len(part.data) != len(part.targets) for part in parts):
            raise RuntimeError(f"The files in {raw} are not of one data set: there is no label for each image.")
        return parts

    def choose(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images (n, 28, 28) and labels (n,) to use, out of those of a file."""
        return images, labels

    def names_of_classes(self) -> list[str]:
        """Return the name of each class."""
        return [name.split(" - ")[0] for name in self.files.classes]  # MNIST's are "0 - zero", ...

    @property
    def _name(self) -> str:
        return str(self.files.__name__)

    def _file_names(self) -> list[str]:
        return [os.path.splitext(os.path.basename(url))[0] for url, _ in self.files.resources]

    def _is_there(self) -> bool:
        raw = self.data_dir / self._name / "raw"
        return all((raw / name).exists() for name in self._file_names())

    def _way_out(self, *, tried: bool = False) -> str:
        """Return what to do; a download that was tried is no way out."""
        files = f"{', '.join(self._file_names())}, as torchvision's {self._name} unpacks them,"
        folder = self.data_dir / self._name / "raw"
        download = "" if tried else "`download=True` fetches them"
        return where_to_put(f"{files} into {folder}", f"the folder that holds `{self._name}`", download)


class FashionMNISTDataModule(MNISTDataModule):
    """Fashion-MNIST: 70,000 pictures of clothes in 10 classes; arguments as for :class:`MNISTDataModule`."""

    files = TorchvisionFiles("FashionMNIST")
    checksums: ClassVar[dict[str, str]] = {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    }


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

    files = TorchvisionFiles("EMNIST")
    checksums: ClassVar[dict[str, str]] = {}  # there are none of the unpacked files
    file_options: ClassVar[dict[str, Any]] = {"split": "letters"}

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        partitioner: PartitionFunction | None = None,
        *,
        classes: Literal["letters", "first10"] = "letters",
        **options: Any,
    ) -> None:
        check_choice("classes", classes, ("letters", "first10"))
        super().__init__(data_dir, partitioner, **options)
        self.classes = classes
        self.num_classes = 10 if classes == "first10" else 26

    def choose(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the chosen letters, counted from 0; the files hold them transposed and counted from 1."""
        if ((labels < 1) | (labels > 26)).any():
            raise RuntimeError(
                f"The files in {self.data_dir / self._name / 'raw'} are damaged: letters are numbered 1 to 26, not "
                f"{int(labels[(labels < 1) | (labels > 26)][0])}. {self._way_out()}"
            )
        kept = labels <= self.num_classes
        return images[kept].transpose(1, 2), labels[kept] - 1

    def names_of_classes(self) -> list[str]:
        """Return a, b, c, ..."""
        return [chr(ord("a") + letter) for letter in range(self.num_classes)]

    def _file_names(self) -> list[str]:
        kinds = ("images-idx3", "labels-idx1")
        return [f"emnist-letters-{part}-{kind}-ubyte" for part in ("train", "test") for kind in kinds]
