from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler, Subset, TensorDataset

from fl_lightning.data import TensorDataModule, client_batches, make_loader
from fl_lightning.data.batches import evaluation_batch_size

WORDS = [{"token": 10 * index, "label": index % 2} for index in range(7)]


class Doubled(TensorDataset):
    def __getitem__(self, index):
        return tuple(2 * tensor for tensor in super().__getitem__(index))


def tensor_dataset(n: int = 23) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(n, 3, 2, generator=generator), torch.arange(n))


DATASETS = {
    "tensors": tensor_dataset(),
    "subset": Subset(tensor_dataset(40), [5, 2, 39, 17, 0, 8, 3]),
    "subset by array": Subset(tensor_dataset(40), np.array([5, 2, 39, 17, 0, 8, 3])),
    "contiguous subset": Subset(tensor_dataset(40), np.arange(10, 21)),
    "subset from the end": Subset(tensor_dataset(40), [-1, 3, -40]),
    "nested subset": Subset(Subset(tensor_dataset(40), np.arange(10, 30)), [4, 0, 19]),
    "own samples": Doubled(*tensor_dataset().tensors),
    "subset of own samples": Subset(Doubled(*tensor_dataset().tensors), [4, 0, 9]),
    "dicts": WORDS,
    "subset of dicts": Subset(WORDS, [6, 1, 2]),
    "one sample": tensor_dataset(1),
}


def assert_same(ours, theirs) -> None:
    assert [*map(type, ours)] == [*map(type, theirs)]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("name", DATASETS)
def test_batches_are_a_dataloaders_bit_for_bit(name):
    dataset = DATASETS[name]
    for batch_size, shuffle in itertools.product([1, 4, 7, 100, None], [True, False]):
        sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(5)) if shuffle else None
        loader = DataLoader(dataset, batch_size=batch_size or len(dataset), sampler=sampler)
        batches = client_batches(dataset, batch_size, torch.Generator().manual_seed(5), shuffle)
        assert_same(list(batches), list(loader))
        assert list(client_batches(Subset(dataset, []), batch_size, torch.Generator(), shuffle)) == []
        assert list(make_loader(Subset(dataset, []), batch_size, shuffle=False)) == []
    assert_same(list(make_loader(dataset, 4, shuffle=False)), list(DataLoader(dataset, 4)))
    torch.manual_seed(3)
    ours = list(make_loader(dataset, 4, shuffle=True))
    torch.manual_seed(3)
    assert_same(ours, list(DataLoader(dataset, 4, shuffle=True)))


@pytest.mark.parametrize(("name", "expected"), [("tensors", [5, 5, 5, 5, 3]), ("dicts", [5, 2])])
def test_a_given_collate_fn_makes_the_batches(name, expected):
    assert list(client_batches(DATASETS[name], 5, torch.Generator(), False, collate_fn=len)) == expected
    assert list(make_loader(DATASETS[name], 5, shuffle=False, collate_fn=len)) == expected
    assert list(make_loader(DATASETS[name], 5, shuffle=False, collate_fn=len, drop_last=True)) == expected[:-1]


@pytest.mark.parametrize("name", ["tensors", "contiguous subset"])
def test_batches_may_be_changed_in_place(name):
    dataset = DATASETS[name]
    source = dataset if name == "tensors" else dataset.dataset
    kept = [tensor.clone() for tensor in source.tensors]
    for x, y in client_batches(dataset, 4, torch.Generator(), False):
        x.zero_()
        y.zero_()
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(source.tensors, kept, strict=True))


def test_a_pooled_loader_gives_single_samples_and_all_at_once():
    for name, labels in (("subset", [5, 2, 39, 17, 0, 8, 3]), ("tensors", list(range(23)))):
        loader = make_loader(DATASETS[name], None, shuffle=False)
        assert [int(loader.dataset[place][1]) for place in range(len(labels))] == labels
        ((_, y),) = loader
        assert y.tolist() == labels


def test_a_pooled_loader_works_with_worker_processes():
    batches = list(make_loader(tensor_dataset(), 10, shuffle=False, num_workers=1))
    assert_same(batches, list(DataLoader(tensor_dataset(), 10)))


def test_a_batch_of_an_evaluation_holds_a_mebibyte_of_256_to_4096_samples():
    labels = torch.zeros(3, dtype=torch.int64)  # 8 bytes each
    for numbers, expected in [(0, 4096), (62, 4096), (63, 2048), (500, 512), (1022, 256), (300_000, 256)]:
        rows = TensorDataset(torch.zeros(3, numbers), labels)
        several = Subset(rows, [0, 2]), ConcatDataset([rows, rows])
        assert [evaluation_batch_size(dataset) for dataset in (rows, *several)] == [expected] * 3
    assert evaluation_batch_size(TensorDataset(torch.zeros(3, 0))) == 4096
    assert evaluation_batch_size(WORDS) == 256
    data = TensorDataModule([(torch.zeros(3, 500), labels)], val=(torch.zeros(3, 500), labels), num_workers=3)
    data.setup()
    assert (data.val_dataloader().batch_size, data.val_dataloader().num_workers) == (512, 3)
    assert data.train_dataloader().num_workers == 3
