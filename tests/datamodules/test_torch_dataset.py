from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.tiny_files import set_up
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from fl_lightning import partitioners
from fl_lightning.data import ClientSplit, SampleSplit, WithinClientSplit
from fl_lightning.datamodules import TorchDatasetDataModule

ALL = WithinClientSplit(val=0.0, test=0.0)


class Squares(Dataset):
    """Sample i is (i², class i mod 3)."""

    def __init__(self, length: int = 12, **attributes) -> None:
        self.length = length
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        return torch.tensor([float(index**2)]), index % 3


def classes(length: int) -> list[int]:
    return [i % 3 for i in range(length)]


def by_class(labels: np.ndarray) -> partitioners.Partition:
    return partitioners.Partition(tuple(np.flatnonzero(labels == label) for label in range(3)))


def ready(dataset, partitioner=by_class, **kwargs) -> TorchDatasetDataModule:
    return set_up(TorchDatasetDataModule(dataset, partitioner, **{"split": ALL, "batch_size": None, **kwargs}))


def samples(data, client: int) -> list[float]:
    ((x, _),) = data.client_batches(client, generator=torch.Generator(), shuffle=False)
    return sorted(x.flatten().tolist())


def test_targets_are_found():
    for kind, name in [(list, "targets"), (np.array, "labels"), (torch.tensor, "_labels"), (list, "y")]:
        data = ready(Squares(**{name: kind(classes(12))}))
        assert data.labels.tolist() == classes(12)
        assert samples(data, 1) == [1.0, 16.0, 49.0, 100.0]
    assert ready(Squares(targets=[0.5] * 12, y=classes(12))).labels.tolist() == classes(12)
    assert samples(ready(Squares(), targets=torch.tensor(classes(12))), 0) == [0.0, 9.0, 36.0, 81.0]


def test_no_targets():
    for dataset in (Squares(), Squares(targets="a text.....", labels=[0.5] * 12)):  # neither of them are classes
        with pytest.raises(ValueError, match=r"ShardPartitioner .*`targets=`"):
            ready(dataset, partitioner=partitioners.ShardPartitioner(3, 2))


def test_a_regression_needs_no_classes():
    x = torch.arange(12.0)[:, None]
    rows = TensorDataset(x, x[:, 0] / 10)
    data = ready(rows, partitioners.IIDPartitioner(3), test_dataset=rows)
    assert data.labels is None
    assert data.statistics().num_samples == 12


def test_tensors_stay_tensors():
    x = torch.arange(12.0)[:, None]
    dataset = TensorDataset(x, torch.tensor(classes(12)))
    data = ready(dataset)
    assert data.source_inputs() is x
    noisy = ready(TensorDataset(x[:, 0]), partitioners.IIDPartitioner(2), feature_noise=0.5).source_inputs()
    assert int((noisy == x[:, 0]).sum()) == 6  # those of the first client, which has no noise
    half = ready(ConcatDataset([Subset(dataset, [11, 1, 3]), dataset]))
    assert half.source_inputs()[:5, 0].tolist() == [11.0, 1.0, 3.0, 0.0, 1.0]
    assert half.labels.tolist() == [2, 1, 0, *classes(12)]


def test_clients_are_given_in_place_of_a_partitioner():
    data = ready(Squares(), None, clients=["x", "y"] * 6)
    assert data.client_names == ["x", "y"]
    assert repr(data).startswith("TorchDatasetDataModule(2 of 2 clients train, 12 samples")
    assert samples(data, 1) == [1.0, 9.0, 25.0, 49.0, 81.0, 121.0]
    assert data.labels is None


@pytest.mark.parametrize(
    ("split", "training", "validation"),
    [
        (None, [3, 3, 3], 3),  # of 4 clients one validates; the one that would be tested on trains
        (ClientSplit(num_folds=4, fold=2, val_fold=1), [3, 3, 3], 3),
        (WithinClientSplit(val=0.4, test=0.4), [2, 2, 2, 2], 4),
        (SampleSplit(val=0.25, test=0.5), [3, 2, 2, 2], 3),
        (SampleSplit(val=0.25, test="official"), [3, 2, 2, 2], 3),
    ],
)
@pytest.mark.parametrize("by", ["partitioner", "clients"])
def test_a_test_set_that_is_given_is_tested_on_and_only_that(split, training, validation, by):
    train = TensorDataset(torch.arange(12.0)[:, None], torch.arange(12) % 3)
    test = TensorDataset(-torch.arange(1.0, 6)[:, None], torch.arange(5) % 3)
    split = ClientSplit(num_folds=4) if split is None else split
    given = {"partitioner": partitioners.IIDPartitioner(4)}
    if by == "clients":
        given = {"partitioner": None, "clients": [i % 4 for i in range(12)]}
    data = ready(train, **given, test_dataset=test, split=split)
    ((tested, _),) = data.test_dataloader()
    ((validated, _),) = data.val_dataloader()
    trained = [x for client in range(data.num_clients) for x in samples(data, client)]
    assert tested.flatten().tolist() == [-1.0, -2.0, -3.0, -4.0, -5.0]
    assert sorted(trained + validated.flatten().tolist()) == list(range(12))
    assert len(validated) == validation
    assert data.eval_client_ids("test") is None
    if by == "partitioner":
        assert data.client_sizes.tolist() == training


def test_names_of_classes_and_a_collate_function():
    data = ready(Squares(targets=classes(12), classes=["a", "b", "c"]), collate_fn=len)
    assert data.class_names == ["a", "b", "c"]
    assert list(data.client_batches(0, generator=torch.Generator())) == [4]
    for targets in (classes(12), [-1, 0, 1] * 4):
        data = ready(Squares(targets=targets, classes=["a", "b"]), partitioner=partitioners.IIDPartitioner(2))
        assert data.class_names is None
