"""MNIST: 70,000 handwritten digits of 28x28 pixels."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset
from torchvision.datasets import MNIST

from datamodules.files import ENVIRONMENT_VARIABLE, resolve_data_dir
from fl_lightning.data import FederatedDataModule, PartitionFunction, Source


class MNISTDataModule(FederatedDataModule):
    """Training and test images together, shared out among clients; inputs are float32 in [0, 1], (N, 1, 28, 28).

    ``SampleSplit(test="official")`` tests on MNIST's own test images, the last 10,000.

    Args:
        data_dir: Folder that holds ``MNIST/raw`` with the four files as torchvision unpacks them, or into which they
            are downloaded; if ``None`` the environment variable ``FL_LIGHTNING_DATA``, else ``data``.
        partitioner: Shares the samples out among clients.
        download: Whether to download the files when they are missing.
        **options: Further arguments of :class:`~fl_lightning.data.FederatedDataModule`.

    Raises:
        FileNotFoundError: At set-up, if there are no files.
        RuntimeError: At set-up, if a file is damaged or the download fails.
    """

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

    def prepare_data(self) -> None:
        """Download the files, unless they are there."""
        if not self.download or self._is_there():
            return
        try:
            MNIST(self.data_dir, download=True)
        except (OSError, RuntimeError) as error:
            raise RuntimeError(f"MNIST could not be downloaded ({error}). {self._way_out()}") from error

    def load(self) -> Source:
        """Read all images: training images, then test images."""
        if not self._is_there():
            raise FileNotFoundError(f"There is no whole MNIST in {self.data_dir}. {self._way_out()}")
        try:
            parts = [MNIST(self.data_dir, train=train) for train in (True, False)]
        except (OSError, RuntimeError, ValueError, AssertionError) as error:
            raise RuntimeError(f"A file in {self.data_dir / 'MNIST' / 'raw'} is damaged. {self._way_out()}") from error
        images = torch.cat([part.data for part in parts]).unsqueeze(1).to(torch.float32).div_(255)
        labels = torch.cat([part.targets for part in parts])
        return Source(
            TensorDataset(images, labels),
            labels.numpy().astype(np.int64),
            test_indices=np.arange(len(parts[0].data), len(images)),
            class_names=[str(digit) for digit in range(10)],
        )

    def _is_there(self) -> bool:
        raw = self.data_dir / "MNIST" / "raw"
        names = [os.path.splitext(os.path.basename(url))[0] for url, _ in MNIST.resources]
        return all((raw / name).exists() for name in names)

    def _way_out(self) -> str:
        return (
            f"Put its four files (from {MNIST.mirrors[-1]}, unpacked) into {self.data_dir / 'MNIST' / 'raw'}, or name "
            f"the folder that holds `MNIST` by `data_dir` or the environment variable {ENVIRONMENT_VARIABLE}; with "
            "network access, `download=True` fetches them in `prepare_data()`."
        )
