"""MNIST: torchvision's files, read whole."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from datamodules import MNISTDataModule
from fl_lightning.data import SampleSplit
from fl_lightning.partitioners import IIDPartitioner


def write(raw: Path, prefix: str, images: np.ndarray, labels: np.ndarray) -> None:
    """Write a pair of idx files."""
    raw.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">IIII", 0x803, *images.shape)
    (raw / f"{prefix}-images-idx3-ubyte").write_bytes(header + images.tobytes())
    (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, len(labels)) + labels.tobytes())


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Twelve training and four test images; image i is filled with the value i."""
    labels = np.arange(16, dtype=np.uint8) % 10
    images = np.repeat(np.arange(16, dtype=np.uint8), 28 * 28).reshape(16, 28, 28)
    write(tmp_path / "MNIST" / "raw", "train", images[:12], labels[:12])
    write(tmp_path / "MNIST" / "raw", "t10k", images[12:], labels[12:])
    return tmp_path


def test_training_and_test_images_are_pooled(tiny: Path) -> None:
    data = MNISTDataModule(tiny, IIDPartitioner(2), split=SampleSplit(val=0, test="official"))
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


def test_missing_files(tmp_path: Path) -> None:
    data = MNISTDataModule(tmp_path, IIDPartitioner(2), download=False)
    data.prepare_data()
    with pytest.raises(FileNotFoundError, match=r"no whole MNIST in .*Put its four files .*FL_LIGHTNING_DATA"):
        data.setup()


def test_a_download_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", fail)
    monkeypatch.setattr("torchvision.datasets.mnist.MNIST.mirrors", ["https://example.invalid/"])
    with pytest.raises(RuntimeError, match=r"MNIST could not be downloaded .*Put its four files"):
        MNISTDataModule(tmp_path, IIDPartitioner(2)).prepare_data()


def test_a_truncated_file(tiny: Path) -> None:
    path = tiny / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RuntimeError, match="damaged"):
        MNISTDataModule(tiny, IIDPartitioner(2)).setup()


@pytest.mark.realdata
def test_real_files(real_data: Path) -> None:
    data = MNISTDataModule(real_data, IIDPartitioner(100), download=False)
    data.setup()
    assert data.labels is not None
    assert np.bincount(data.labels).tolist() == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
