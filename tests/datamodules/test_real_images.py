"""Image data sets' own files, as they are published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fl_lightning.data import ImageDataModule
from fl_lightning.datamodules import CIFAR10DataModule, EMNISTDataModule, FashionMNISTDataModule, MNISTDataModule


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("make", "counts", "tested", "name"),
    [
        (CIFAR10DataModule, [6000] * 10, 10_000, "airplane"),
        (MNISTDataModule, [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958], 10_000, "0"),
        (FashionMNISTDataModule, [7000] * 10, 10_000, "T-shirt/top"),
        (EMNISTDataModule, [5600] * 26, 20_800, "a"),
        (lambda folder, **options: EMNISTDataModule(folder, classes="first10", **options), [5600] * 10, 8_000, "a"),
    ],
)
def test_real_images(
    real_data: Path, make: Callable[..., ImageDataModule], counts: list[int], tested: int, name: str
) -> None:
    source = make(real_data, download=False).load()
    assert source.labels is not None and source.test_indices is not None and source.class_names is not None
    assert np.bincount(source.labels).tolist() == counts
    assert source.test_indices.tolist() == list(range(sum(counts) - tested, sum(counts)))
    assert source.class_names[0] == name
