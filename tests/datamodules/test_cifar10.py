from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
import torch
from helpers.tiny_files import set_up, write_cifar10, write_cifar100
from torchvision.datasets import CIFAR10, utils

from fl_lightning.data import SampleSplit, WithinClientSplit
from fl_lightning.datamodules import CIFAR10DataModule, CIFAR100DataModule
from fl_lightning.partitioners import IIDPartitioner


@pytest.fixture
def cifar(tmp_path, monkeypatch) -> Path:
    """A folder with six files of 4 images; every pixel of image i is i, its label is i mod 10."""
    return write_cifar10(tmp_path, monkeypatch)


def ready(folder: Path | None, **kwargs) -> CIFAR10DataModule:
    options = {"split": SampleSplit(val=0.0, test="official"), **kwargs}
    return set_up(CIFAR10DataModule(folder, IIDPartitioner(3), **options))


def test_training_and_test_images_are_pooled_and_the_last_file_is_the_official_test_set(cifar):
    data = ready(cifar)
    x = data.source_inputs()
    assert (x.shape, x.dtype) == ((24, 3, 32, 32), torch.uint8)
    assert x[:, 2, 31, 0].tolist() == list(range(24))
    assert data.labels.tolist() == [i % 10 for i in range(24)]
    assert data.class_names[3] == "class 3"
    ((x, y),) = data.test_dataloader()
    assert sorted(x[:, 0, 0, 0].tolist()) == [20, 21, 22, 23]
    assert sorted(y.tolist()) == [0, 1, 2, 3]


def test_images_are_normalised_by_constants_of_ones_own():
    data = CIFAR10DataModule(mean=(0.491, 0.482, 0.447), std=[0.247, 0.243, 0.262])
    white = data.preprocess(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8), training=False)
    assert white[0, :, 0, 0].tolist() == pytest.approx([0.509 / 0.247, 0.518 / 0.243, 0.553 / 0.262], rel=1e-5)
    assert CIFAR10DataModule().mean == (0.4914, 0.4822, 0.4465)
    plain = CIFAR10DataModule(mean=torch.zeros(1), std=[1.0]).preprocess(torch.full((1, 3, 2, 2), 51), training=False)
    assert plain.unique().tolist() == pytest.approx([0.2])


def test_the_folder_is_an_argument_or_in_the_environment_or_data(monkeypatch, tmp_path):
    monkeypatch.delenv("FL_LIGHTNING_DATA", raising=False)
    assert CIFAR10DataModule().data_dir == Path("data")
    monkeypatch.setenv("FL_LIGHTNING_DATA", str(tmp_path))
    assert CIFAR10DataModule().data_dir == tmp_path
    assert CIFAR10DataModule("elsewhere").data_dir == Path("elsewhere")


def test_missing_files_are_downloaded_once_by_prepare_data_alone(cifar, monkeypatch):
    archive = cifar / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(cifar / "cifar-10-batches-py", arcname="cifar-10-batches-py")
    for path in (cifar / "cifar-10-batches-py").iterdir():
        path.unlink()
    content = archive.read_bytes()
    archive.unlink()
    calls = []

    def download(url, root, filename, md5):
        calls.append((url, filename, md5))
        archive.write_bytes(content)
        utils.extract_archive(str(archive), str(root))

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", download)
    with pytest.raises(FileNotFoundError, match="`download=True`"):
        CIFAR10DataModule(cifar, IIDPartitioner(3)).setup("fit")
    for _ in range(2):
        assert len(ready(cifar).labels) == 24
    assert calls == [("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", archive.name, CIFAR10.tgz_md5)]


@pytest.mark.parametrize(
    ("options", "targets", "seen", "name"),
    [
        ({}, [7, 99, 0, 5, 7, 99], [7, 99, 0, 5, 7, 99], "fine 1"),
        ({"labels": "coarse"}, [1, 19, 0, 1, 1, 19], [1, 19, 0, 1, 1, 19], "coarse 1"),
        ({"partition_labels": "coarse"}, [7, 99, 0, 5, 7, 99], [1, 19, 0, 1, 1, 19], "coarse 1"),
        ({"labels": "coarse", "partition_labels": "fine"}, [1, 19, 0, 1, 1, 19], [7, 99, 0, 5, 7, 99], "fine 1"),
    ],
)
def test_cifar100_has_fine_and_coarse_labels(tmp_path, monkeypatch, options, targets, seen, name):
    write_cifar100(tmp_path, monkeypatch, [7, 99, 0, 5], [7, 99])
    given = []
    partitioner = lambda labels: given.extend(labels.tolist()) or [[0, 1, 2], [3, 4, 5]]  # noqa: E731
    data = set_up(CIFAR100DataModule(tmp_path, partitioner, split=WithinClientSplit(0.0, 0.0), **options))
    assert data.load().dataset.tensors[1].tolist() == targets
    assert given == data.labels.tolist() == seen
    assert data.class_names[1] == name
    assert all(f"{argument}={value!r}" in repr(data) for argument, value in options.items())
