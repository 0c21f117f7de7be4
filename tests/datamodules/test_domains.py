from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny_files import set_up
from PIL import Image

from fl_lightning.data import WithinClientSplit
from fl_lightning.datamodules import DomainDataModule
from fl_lightning.partitioners import IIDPartitioner

ALL = WithinClientSplit(val=0.0, test=0.0)


def write(folder: Path, **sizes: dict[str, int]) -> Path:
    """Write so many images of each class of each domain; the grey of each image is its number."""
    grey = 0
    for domain, of_domain in sizes.items():
        for name, number in of_domain.items():
            place = folder / domain / name
            place.mkdir(parents=True)
            for image in range(number):
                grey += 1
                Image.new("L", (5, 3), grey).save(place / f"{image}.png")
    return folder


@pytest.fixture
def three(tmp_path: Path) -> Path:
    return write(tmp_path, photo={"cat": 2, "dog": 3}, sketch={"cat": 4, "dog": 1}, art={"cat": 2, "dog": 2})


def greys(data: DomainDataModule, client: int) -> list[int]:
    [(x, _)] = data.client_batches(client, generator=torch.Generator(), shuffle=False)
    return sorted(x[:, 0, 0, 0].tolist())


def test_each_domain_is_a_client(three: Path) -> None:
    data = set_up(DomainDataModule(three, size=4, split=ALL))
    assert data.client_names == ["art", "photo", "sketch"]
    assert data.client_sizes.tolist() == [4, 5, 5]
    # in the order of the names of the files' domains; art was written last
    assert greys(data, 0) == [11, 12, 13, 14]
    assert greys(data, 1) == [1, 2, 3, 4, 5]
    x = data.source_inputs()
    assert (x.shape, x.dtype) == ((14, 3, 4, 4), torch.uint8)
    assert data.class_names == ["cat", "dog"]
    assert data.labels.tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1]


def test_the_domain_that_is_left_out_tests_and_trains_nobody(three: Path) -> None:
    data = set_up(DomainDataModule(three, "sketch", size=2, split=ALL))
    assert data.client_names == ["art", "photo"]
    assert data.client_sizes.tolist() == [4, 5]
    [(x, y)] = data.test_dataloader()
    assert x[:, 0, 0, 0].tolist() == [6, 7, 8, 9, 10]
    assert y.tolist() == [0, 0, 0, 0, 1]
    assert data.eval_client_ids("test") is None


def test_a_domain_is_shared_out_among_clients(three: Path) -> None:
    data = set_up(DomainDataModule(three, "art", IIDPartitioner(2, seed=0), size=2, split=ALL))
    assert data.client_names == ["photo 0", "photo 1", "sketch 0", "sketch 1"]
    assert sorted(greys(data, 0) + greys(data, 1)) == [1, 2, 3, 4, 5]
    assert sorted(greys(data, 2) + greys(data, 3)) == [6, 7, 8, 9, 10]


def test_images_that_no_client_of_a_domain_holds_are_left_out(three: Path) -> None:
    first_of_each = lambda labels: [np.flatnonzero(labels == label)[:1] for label in (0, 1)]  # noqa: E731
    data = set_up(DomainDataModule(three, None, first_of_each, size=2, split=ALL))
    assert data.client_sizes.tolist() == [1] * 6
    assert [greys(data, client) for client in range(6)] == [[11], [13], [1], [3], [6], [10]]


def test_a_tenth_validates_and_without_a_domain_left_out_another_tenth_tests(tmp_path: Path) -> None:
    write(tmp_path, photo={"cat": 10}, sketch={"cat": 20})
    left_out = set_up(DomainDataModule(tmp_path, "photo", size=2))
    assert (left_out.client_sizes.tolist(), len(left_out.val_dataloader().dataset)) == ([18], 2)
    together = set_up(DomainDataModule(tmp_path, size=2))
    assert together.client_sizes.tolist() == [8, 16]
    assert [len(together.val_dataloader().dataset), len(together.test_dataloader().dataset)] == [3, 3]
    one_each = lambda labels: np.split(np.arange(len(labels)), len(labels))  # noqa: E731
    names = set_up(DomainDataModule(tmp_path, None, one_each, size=2, split=ALL)).client_names
    assert [names[place] for place in (0, 9, 10, 29)] == ["photo 0", "photo 9", "sketch 00", "sketch 19"]
