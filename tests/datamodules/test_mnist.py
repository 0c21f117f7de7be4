"""MNIST: torchvision's files, read whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny_files import write_idx, write_mnist

from fl_lightning import datamodules
from fl_lightning.data import SampleSplit
from fl_lightning.partitioners import IIDPartitioner


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve training and four test images; image i is filled with the value i."""
    write_mnist(tmp_path, monkeypatch, datamodules.MNISTDataModule, 12, 4)
    return tmp_path


def test_training_and_test_images_are_pooled(tiny: Path) -> None:
    data = datamodules.MNISTDataModule(tiny, IIDPartitioner(2), split=SampleSplit(val=0, test="official"))
    data.prepare_data()
    source = data.load()
    x, y = source.dataset.tensors
    assert x.shape == (16, 1, 28, 28)
    assert x.dtype == torch.float32
    assert x[:, 0, 5, 5].tolist() == pytest.approx([i / 255 for i in range(16)])
    assert y.tolist() == [i % 10 for i in range(16)]
    assert source.test_indices.tolist() == [12, 13, 14, 15]
    data.setup()
    [batch] = list(data.test_dataloader())
    assert batch[1].tolist() == [2, 3, 4, 5]


def test_pixels_of_fedprox_are_standardised_over_all_images(tiny: Path) -> None:
    assert datamodules.FedProxMNISTDataModule(tiny).partitioner.num_clients == 1000
    x, _ = datamodules.FedProxMNISTDataModule(tiny, IIDPartitioner(2)).load().dataset.tensors
    # The bytes of a pixel are 0 to 15, with mean 7.5 and variance (16² - 1) / 12.
    deviation = (255 / 12) ** 0.5 + 0.001
    assert x[:, 0, 3, 3].tolist() == pytest.approx([(i - 7.5) / deviation for i in range(16)], rel=1e-6)
    # each pixel by itself: of means 1 and 20, and deviations 1 and 10
    [[one]], [[other]] = datamodules.FedProxMNISTDataModule(tiny).as_inputs(torch.tensor([[[0, 10]], [[2, 30]]]))
    assert other.tolist() == (-one).tolist() == pytest.approx([1 / 1.001, 10 / 10.001])


def test_a_download_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", fail)
    monkeypatch.setattr("torchvision.datasets.mnist.MNIST.mirrors", ["https://example.invalid/"])
    with pytest.raises(RuntimeError, match=r"MNIST could not be downloaded .*Put train-images.*FL_LIGHTNING_DATA"):
        datamodules.MNISTDataModule(tmp_path, IIDPartitioner(2)).prepare_data()
    monkeypatch.setattr("torchvision.datasets.mnist.EMNIST.download", fail)
    with pytest.raises(RuntimeError, match=r"EMNIST could not be downloaded \(no route\)"):
        datamodules.EMNISTDataModule(tmp_path).prepare_data()


def test_emnist_letters_are_upright_and_counted_from_0(tmp_path: Path) -> None:
    raw = tmp_path / "EMNIST" / "raw"
    images = np.zeros((4, 28, 28), dtype=np.uint8)
    images[:, 3, 9] = 255  # as the files hold it: row and column exchanged
    for part, labels in (("train", [1, 10, 11, 26]), ("test", [2, 26, 10, 12])):
        write_idx(raw, f"emnist-letters-{part}", images, np.array(labels, dtype=np.uint8))
    x, y = datamodules.EMNISTDataModule(tmp_path).load().dataset.tensors
    assert y.tolist() == [0, 9, 10, 25, 1, 25, 9, 11]
    assert (x[0, 0, 9, 3], x[0, 0, 3, 9]) == (1.0, 0.0)
    first = datamodules.EMNISTDataModule(tmp_path, classes="first10").load()
    assert first.dataset.tensors[1].tolist() == [0, 9, 1, 9]
    assert first.test_indices.tolist() == [2, 3]
    assert first.class_names == list("abcdefghij")
