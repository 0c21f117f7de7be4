from __future__ import annotations

from functools import partial

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset
from torchvision.datasets import FakeData

from datamodules import TorchDatasetDataModule
from fl_lightning.data import ClientSplit, SampleSplit, Source, WithinClientSplit
from fl_lightning.partitioners import (
    DirichletPartitioner,
    ExplicitPartitioner,
    IIDPartitioner,
    NaturalPartitioner,
    Partition,
    ShardPartitioner,
)

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


def by_class(labels: np.ndarray) -> Partition:
    return Partition(tuple(np.flatnonzero(labels == label) for label in range(3)))


def ready(dataset, partitioner=by_class, **kwargs) -> TorchDatasetDataModule:
    data = TorchDatasetDataModule(dataset, partitioner, **{"split": ALL, "batch_size": None, **kwargs})
    data.prepare_data()
    data.setup("fit")
    return data


def samples(data, client: int) -> list[float]:
    ((x, _),) = data.client_batches(client, generator=torch.Generator(), shuffle=False)
    return sorted(x.flatten().tolist())


@pytest.mark.parametrize("name", ["targets", "labels", "_labels", "y"])
@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_targets_are_found(name, kind):
    data = ready(Squares(**{name: kind(classes(12))}))
    assert data.labels.tolist() == classes(12)
    assert samples(data, 1) == [1.0, 16.0, 49.0, 100.0]


def test_targets_are_found_within_subsets_and_joined_sets():
    first, second = Squares(targets=classes(12)), Squares(6, targets=classes(6))
    data = ready(ConcatDataset([Subset(first, [4, 3, 2]), second]))
    assert data.labels.tolist() == [1, 0, 2, 0, 1, 2, 0, 1, 2]
    assert samples(data, 1) == [1.0, 16.0, 16.0]


def test_targets_are_given():
    data = ready(Squares(), targets=torch.tensor(classes(12)))
    assert samples(data, 0) == [0.0, 9.0, 36.0, 81.0]


def test_no_targets():
    for dataset in (Squares(), Squares(targets="a text.....", labels=[0.5] * 12)):  # neither of them are classes
        with pytest.raises(ValueError, match=r"ShardPartitioner shares samples out by class, and no .*`targets=`"):
            ready(dataset, partitioner=ShardPartitioner(3, 2))


def test_a_regression_needs_no_classes():
    x = torch.arange(12.0)[:, None]
    data = ready(TensorDataset(x, x[:, 0] / 10), partitioner=IIDPartitioner(3))
    assert data.labels is None
    assert data.statistics().num_samples == 12


def test_tensors_stay_tensors():
    x = torch.arange(12.0)[:, None]
    dataset = TensorDataset(x, torch.tensor(classes(12)))
    data = ready(dataset)
    assert data.source_inputs() is x
    half = ready(ConcatDataset([Subset(dataset, [11, 1, 3]), dataset]))
    assert half.source_inputs()[:5, 0].tolist() == [11.0, 1.0, 3.0, 0.0, 1.0]
    assert half.labels.tolist() == [2, 1, 0, *classes(12)]


def test_tensors_of_different_shapes_are_left_as_they_are():
    parts = [TensorDataset(torch.zeros(3, size), torch.tensor([0, 1, 2])) for size in (2, 4)]
    data = ready(ConcatDataset(parts), partitioner=IIDPartitioner(6))
    assert data.num_clients == 6
    with pytest.raises(ValueError, match="is a ConcatDataset"):
        data.source_inputs()


def test_clients_are_given_in_place_of_a_partitioner():
    data = ready(Squares(), None, clients=["x", "y"] * 6)
    assert data.client_names == ["x", "y"]
    assert samples(data, 1) == [1.0, 9.0, 25.0, 49.0, 81.0, 121.0]
    assert data.labels is None


def test_a_data_set_without_samples_is_named():
    with pytest.raises(ValueError, match=r"`dataset` has no samples, got .*Look at how it was read or filtered"):
        TorchDatasetDataModule(Squares(0), IIDPartitioner(2))
    with pytest.raises(ValueError, match="`test_dataset` has no samples"):
        TorchDatasetDataModule(Squares(), IIDPartitioner(2), test_dataset=Squares(0))
    with pytest.raises(ValueError, match="`dataset` has no samples"):
        Source(TensorDataset(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)))


def test_an_official_test_set():
    train, test = Squares(targets=classes(12)), Squares(3, targets=classes(3))
    official = SampleSplit(val=0.0, test="official")
    data = ready(train, split=official, test_dataset=test)
    ((x, y),) = data.test_dataloader()
    assert (x.flatten().tolist(), y.tolist()) == ([0.0, 1.0, 4.0], [0, 1, 2])
    assert data.partition.sizes.tolist() == [4, 4, 4]
    data = ready(train, None, clients=[5] * 3 + [7] * 9, split=official, test_dataset=test)
    assert data.client_sizes.tolist() == [3, 9]


@pytest.mark.parametrize(
    ("split", "training", "validation"),
    [
        (None, [3, 3, 3], 3),  # of 4 clients one validates; the one that would be tested on trains
        (ClientSplit(num_folds=4, fold=2, val_fold=1), [3, 3, 3], 3),
        (WithinClientSplit(val=0.4, test=0.4), [2, 2, 2, 2], 4),
        (SampleSplit(val=0.25, test=0.5), [3, 2, 2, 2], 3),
        (SampleSplit(val=0.25, test=0.5, stratify=True), [3, 2, 2, 2], 3),
        (SampleSplit(val=0.25, test="official"), [3, 2, 2, 2], 3),
    ],
)
@pytest.mark.parametrize("by", ["partitioner", "clients"])
def test_a_test_set_that_is_given_is_tested_on_and_only_that(split, training, validation, by):
    train = TensorDataset(torch.arange(12.0)[:, None], torch.arange(12) % 3)
    test = TensorDataset(-torch.arange(1.0, 6)[:, None], torch.arange(5) % 3)
    split = ClientSplit(num_folds=4) if split is None else split
    if by == "clients":
        data = ready(train, None, clients=[i % 4 for i in range(12)], test_dataset=test, split=split)
    else:
        data = ready(train, IIDPartitioner(4), test_dataset=test, split=split)
    ((tested, _),) = data.test_dataloader()
    ((validated, _),) = data.val_dataloader()
    trained = [x for client in range(data.num_clients) for x in samples(data, client)]
    assert tested.flatten().tolist() == [-1.0, -2.0, -3.0, -4.0, -5.0]
    assert sorted(trained + validated.flatten().tolist()) == list(range(12))
    assert len(validated) == validation
    assert data.eval_client_ids("test") is None
    if by == "partitioner":
        assert data.client_sizes.tolist() == training


def test_a_test_set_beside_explicit_clients_keeps_their_positions():
    train, test = Squares(), Squares(3)
    data = ready(train, ExplicitPartitioner([[0, 11], [5, 6, 7]]), test_dataset=test)
    assert [samples(data, client) for client in (0, 1)] == [[0.0, 121.0], [25.0, 36.0, 49.0]]


def test_inputs_are_standardised_without_the_test_set_that_is_given():
    train = TensorDataset(torch.tensor([[0.0], [2.0], [0.0], [2.0]]), torch.zeros(4, dtype=torch.long))
    test = TensorDataset(torch.tensor([[101.0]]), torch.zeros(1, dtype=torch.long))
    data = ready(train, IIDPartitioner(2), test_dataset=test, standardize="global")
    ((x, _),) = data.test_dataloader()
    assert x.tolist() == [[100.0]]


def test_torchvisions_images():
    images = FakeData(20, image_size=(3, 8, 8), num_classes=4, transform=lambda image: torch.tensor(np.array(image)))
    data = ready(images, DirichletPartitioner(2, 1.0), targets=[images[i][1] for i in range(20)], batch_size=5)
    x, y = next(data.client_batches(0, generator=torch.Generator()))
    assert (x.shape, y.shape) == ((5, 8, 8, 3), (5,))


def test_names_of_classes_and_a_collate_function():
    data = ready(Squares(targets=classes(12), classes=["a", "b", "c"]), collate_fn=len)
    assert data.class_names == ["a", "b", "c"]
    assert list(data.client_batches(0, generator=torch.Generator())) == [4]
    assert ready(Squares(targets=classes(12), classes=["a", "b"])).class_names is None


WHOLE = torch.arange(60) % 3


@pytest.mark.parametrize(
    ("targets", "found", "way_out"),
    [
        (WHOLE[:, None], r"shape \(60, 1\), type int64", r"y.squeeze\(1\)"),
        (WHOLE.float(), r"shape \(60,\), type float32", r"y.long\(\)"),
        (WHOLE.double()[:, None], r"shape \(60, 1\), type float64", r"y.squeeze\(1\).long\(\)"),
        (torch.nn.functional.one_hot(WHOLE), r"shape \(60, 3\), type int64", r"y.argmax\(1\)"),
        (WHOLE.numpy().astype(float), r"shape \(60,\), type float64", r"y.astype\(int\)"),
        ([str(n) for n in WHOLE.tolist()], r"shape \(60,\), type text", r"np.unique\(y, return_inverse=True\)\[1\]"),
    ],
)
def test_targets_that_are_nearly_classes_are_described(targets, found, way_out):
    reason = rf"The targets have {found}; classes are whole numbers of shape \(60,\). Use `{way_out}`.$"
    data = TorchDatasetDataModule(Squares(60, targets=targets), DirichletPartitioner(3, 1.0))
    with pytest.raises(ValueError, match=f"no classes were found. {reason}"):
        data.setup()
    with pytest.raises(TypeError, match=f"^`targets` must be whole numbers, one class per sample. {reason}"):
        TorchDatasetDataModule(Squares(60), targets=targets)
    with pytest.raises(ValueError, match=f"^`labels` must be whole numbers, one class per sample. {reason}"):
        Source(Squares(60), targets)


def test_numbers_to_predict_are_no_classes():
    data = TorchDatasetDataModule(TensorDataset(torch.rand(60, 2), torch.rand(60)), DirichletPartitioner(3, 1.0))
    with pytest.raises(ValueError, match=r"Numbers to predict become classes by `np.digitize\("):
        data.setup()


X, Y = torch.rand(6, 2), torch.arange(6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((X, Y), r"is a tuple of 2, not a data set. Give TensorDataset\(torch.as_tensor\(x\), torch.as_tensor\(y\)\)"),
        (pandas.DataFrame({"a": [1, 2]}), "is a DataFrame, whose items are columns, not samples. Give TensorDataset"),
        (pandas.Series([1, 2]), "is a Series, whose items are columns"),
    ],
)
def test_arrays_and_tables_are_no_data_sets(given, message):
    with pytest.raises(TypeError, match=f"^`dataset` {message}"):
        TorchDatasetDataModule(given, IIDPartitioner(2))
    with pytest.raises(TypeError, match=f"^`dataset` {message}"):
        Source(given)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: TorchDatasetDataModule(Stream()), TypeError, "`dataset` must have __len__ and __getitem__, .*Stream"),
        (
            lambda: TorchDatasetDataModule(Squares(), test_dataset=Stream()),
            TypeError,
            "`test_dataset` must have __len__",
        ),
        (lambda: TorchDatasetDataModule(Stream()), TypeError, "got <Stream>.*list.dataset. keeps them.$"),
        (
            lambda: TorchDatasetDataModule(DataLoader(Squares())),
            TypeError,
            "`dataset` must be a data set, got a DataLoader. Give its `dataset`; `batch_size` is an argument here",
        ),
        (
            lambda: TorchDatasetDataModule(Squares(), targets=[1, 2]),
            ValueError,
            r"`targets` must have one entry per sample, shape \(12,\), got \(2,\)",
        ),
        (
            lambda: TorchDatasetDataModule(Squares(), targets=[0.5] * 12),
            TypeError,
            "`targets` must be whole numbers, one class per sample, got float64",
        ),
        (
            lambda: TorchDatasetDataModule(Squares(), IIDPartitioner(2), clients=[1] * 12),
            ValueError,
            "^Give `partitioner` or `clients`, not both: ",
        ),
        (
            lambda: TorchDatasetDataModule(Squares(), clients=[1] * 13),
            ValueError,
            r"`clients` must have one entry per sample, shape \(12,\), got \(13,\)",
        ),
        (
            lambda: TorchDatasetDataModule(Squares(), test_dataset=Squares(4), test_targets=[1]),
            ValueError,
            r"`test_targets` must have one entry per sample, shape \(4,\), got \(1,\)",
        ),
    ],
)
def test_wrong_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


def by_value(values):
    return np.array_split(np.argsort(values), 2)


@pytest.mark.parametrize(
    ("partitioner", "told"),
    [
        (by_value, "No classes were found, so by_value is given a 0 for each of 6 samples."),
        (IIDPartitioner(2), ""),
        (ExplicitPartitioner([[0, 1], [2]]), ""),
        (partial(IIDPartitioner(2)), ""),
    ],
)
def test_a_line_says_what_a_function_gets_where_there_are_no_classes(partitioner, told, caplog):
    rows = TensorDataset(torch.zeros(6, 1), torch.rand(6))
    with caplog.at_level("INFO"):
        TorchDatasetDataModule(rows, partitioner, split=WithinClientSplit(0, 0)).setup()
    assert "\n".join(record.getMessage() for record in caplog.records) == told


class CountedStream(Stream):
    def __len__(self):
        return 5


@pytest.mark.parametrize("stream", [Stream(), CountedStream()])
def test_a_stream_is_refused_before_it_is_read(stream):
    for make in (lambda: TorchDatasetDataModule(stream, IIDPartitioner(2)), lambda: Source(stream)):
        with pytest.raises(TypeError, match=r"must have __len__ and __getitem__.*list\(dataset\) keeps them"):
            make()


def test_whole_numbers_may_be_objects():
    numbers = np.array([0, 1, 1, 0], dtype=object)
    rows = TensorDataset(torch.zeros(4, 1))
    data = TorchDatasetDataModule(rows, clients=numbers, targets=numbers, split=WithinClientSplit(0, 0))
    data.setup()
    assert data.client_names == ["0", "1"]
    assert [indices.tolist() for indices in data.partition.indices] == [[0, 3], [1, 2]]
    assert data.labels.tolist() == [0, 1, 1, 0]
    assert data.partition == NaturalPartitioner()(numbers) == NaturalPartitioner()([0, 1, 1, 0])


def test_a_mask_of_objects_is_no_list_of_samples():
    with pytest.raises(TypeError, match="must hold integers"):
        Partition((np.array([True, False], dtype=object),))


class WithNames(TensorDataset):
    classes = ("cat", "dog")


def test_names_of_classes_are_left_out_where_samples_have_no_label():
    data = TorchDatasetDataModule(
        WithNames(torch.zeros(3, 1), torch.tensor([-1, 0, 1])), IIDPartitioner(1), split=WithinClientSplit(0, 0)
    )
    data.setup()
    assert data.class_names is None
    assert data.plot().table.columns.tolist() == ["-1", "0", "1"]
