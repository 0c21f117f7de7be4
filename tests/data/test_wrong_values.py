"""A catalogue of wrong values, given to every argument of every public constructor of partitioners, splits and data.

Each value is either accepted, because it means something, or refused with a ``TypeError`` or ``ValueError`` that names
the argument.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.wrong_values import GRAPH, IID, KINDS, PARTITION, Makers, X, Y, arguments_of, labels_of, name_of, problems
from torch.utils.data import DataLoader, TensorDataset

import datamodules
import fl_lightning.data
import fl_lightning.partitioners
from datamodules import (
    CIFAR10DataModule,
    CIFAR100DataModule,
    CovertypeDataModule,
    CropSplit,
    DigitsDataModule,
    DMOZDataModule,
    EICUDataModule,
    EMNISTDataModule,
    FashionMNISTDataModule,
    FedDynSyntheticDataModule,
    FedProxSyntheticDataModule,
    HuggingFaceDataModule,
    MNISTDataModule,
    OrderedSplit,
    ShakespeareDataModule,
    TableDataModule,
    TorchDatasetDataModule,
)
from fl_lightning.data import (
    Backdoor,
    ClientDatasetsModule,
    ClientSplit,
    FederatedDataModule,
    ImageDataModule,
    LabelFlipping,
    SampleSplit,
    Source,
    Split,
    TensorDataModule,
    WithinClientSplit,
    client_batches,
)
from fl_lightning.partitioners import (
    ClasswiseDirichletPartitioner,
    DirichletPartitioner,
    ExplicitPartitioner,
    FeatureQPPartitioner,
    IIDPartitioner,
    LimitedClassesPartitioner,
    NaturalPartitioner,
    Partition,
    PathologicalPartitioner,
    QPPartitioner,
    QuantitySkewPartitioner,
    ShardPartitioner,
    TopicGraph,
    TopicGraphPartitioner,
    add_feature_noise,
    c_score,
    device_experiment_partitioner,
    diffuse,
    label_counts,
    label_entropy,
    partition_statistics,
    pick_client_topics,
    plot_label_distributions,
    quantile_buckets,
)

LABELS = Y.numpy()

MAKERS: Makers = {
    # what makes it: arguments that are right, and the kind of each of its own
    IIDPartitioner: ({"num_clients": 3}, {"num_clients": "count", "seed": "count or 0"}),
    DirichletPartitioner: (
        {"num_clients": 3, "alpha": 1.0},
        {
            "num_clients": "count",
            "alpha": "positive",
            "size_sigma": "not negative",
            "max_classes_per_partition": "count?",
            "seed": "count or 0",
        },
    ),
    ClasswiseDirichletPartitioner: (
        {"num_clients": 3, "alpha": 1.0},
        {
            "num_clients": "count",
            "alpha": "positive",
            "min_partition_size": "count",
            "self_balancing": "bool",
            "seed": "count or 0",
        },
    ),
    QuantitySkewPartitioner: (
        {"num_clients": 3, "alpha": 1.0},
        {"num_clients": "count", "alpha": "positive", "min_partition_size": "count", "seed": "count or 0"},
    ),
    ShardPartitioner: (
        {"num_clients": 3},
        {
            "num_clients": "count",
            "num_shards_per_partition": "count",
            "shard_size": "count?",
            "seed": "count or 0",
        },
    ),
    PathologicalPartitioner: (
        {"num_clients": 3, "num_classes_per_partition": 2},
        {
            "num_clients": "count",
            "num_classes_per_partition": "count",
            "class_assignment_mode": "choice",
            "seed": "count or 0",
        },
    ),
    LimitedClassesPartitioner: (
        {"num_clients": 3, "limited_clients": [0]},
        {
            "num_clients": "count",
            "limited_clients": "choice of two",
            "num_classes_per_partition": "count",
            "seed": "count or 0",
        },
    ),
    QPPartitioner: (
        {"num_clients": 3},
        {
            "num_clients": "count",
            "size_alpha": "positive",
            "class_alpha": "positive",
            "burn_in": "count or 0",
            "search": "count or 0",
            "step": "positive share",
            "step_rule": "choice",
            "burn_in_stop": "above 1?",
            "rounding": "choice",
            "seed": "count or 0",
        },
    ),
    FeatureQPPartitioner: (
        {"num_clients": 3},
        {
            "num_clients": "count",
            "size_alpha": "positive",
            "class_alpha": "positive",
            "feature_alpha": "positive",
            "num_buckets": "count",
            "burn_in": "count or 0",
            "search": "count or 0",
            "step": "positive share",
            "step_rule": "choice",
            "burn_in_stop": "above 1?",
            "seed": "count or 0",
        },
    ),
    NaturalPartitioner: ({}, {"min_partition_size": "count"}),
    ExplicitPartitioner: ({"assignment": [[0], [1]]}, {"assignment": "file of a partition"}),
    Partition: ({"indices": [[0], [1]]}, {"indices": "choice"}),
    TopicGraph: ({"topics": ("Top/A", "Top/B"), "edges": []}, {"topics": "names", "edges": "edges"}),
    TopicGraphPartitioner: (
        {"graph": GRAPH},
        {"graph": "graph", "steps": "count or 0", "stay_weight": "positive", "seed": "count or 0?"},
    ),
    device_experiment_partitioner: ({"experiment": "1.1"}, {"experiment": "choice", "seed": "count or 0"}),
    add_feature_noise: (
        {"x": X, "partition": PARTITION, "level": 0.1},
        {"x": "inputs", "partition": "partition", "level": "not negative", "seed": "count or 0"},
    ),
    quantile_buckets: ({"values": [1.0], "num_buckets": 2}, {"values": "some numbers", "num_buckets": "count"}),
    pick_client_topics: (
        {"counts": {"Top/A": 300, "Top/B": 300}, "relations": [("Top/A", "Top/B")]},
        {"counts": "choice", "min_samples": "count", "root": "choice?"},
    ),
    plot_label_distributions: (
        {"partition": PARTITION, "labels": LABELS},
        {
            "partition": "partition",
            "labels": "labels?",
            "max_clients": "count",
            "class_names": "choice?",
            "client_names": "choice?",
            "order": "choice",
        },
    ),
    label_counts: ({"partition": PARTITION, "labels": LABELS}, {"partition": "partition", "labels": "labels"}),
    partition_statistics: ({"partition": PARTITION, "labels": LABELS}, {"partition": "partition", "labels": "labels?"}),
    c_score: ({"counts": [[1, 2]]}, {"counts": "matrix"}),
    label_entropy: ({"counts": [[1, 2]]}, {"counts": "matrix"}),
    ClientSplit: ({}, {"num_folds": "count", "fold": "index", "seed": "count or 0", "val_fold": "index without 0?"}),
    SampleSplit: ({}, {"val": "share", "test": "share", "seed": "count or 0", "stratify": "bool"}),
    WithinClientSplit: ({}, {"val": "share", "test": "share", "seed": "count or 0"}),
    OrderedSplit: ({}, {"val": "share", "test": "share", "gap": "count or 0"}),
    CropSplit: (
        {},
        {"num_clients": "count", "train": "count", "test": "count", "base": "split?", "seed": "count or 0"},
    ),
    LabelFlipping: ({"clients": [0], "num_classes": 3}, {"clients": "indices", "num_classes": "count"}),
    Backdoor: (
        {"clients": [0]},
        {
            "clients": "indices",
            "target": "count or 0",
            "fraction": "positive share",
            "size": "count",
            "value": "finite number",
        },
    ),
    FederatedDataModule: (
        {},
        {
            "partitioner": "partitioner?",
            "batch_size": "size of a tensor?",
            "eval_batch_size": "size of a tensor",
            "split": "split?",
            "standardize": "choice?",
            "impute": "choice?",
            "feature_noise": "not negative",
            "shuffle": "bool",
            "drop_last": "bool",
            "sampler": "callable with three arguments?",
            "train_transform": "callable?",
            "eval_transform": "callable?",
            "num_workers": "count or 0",
        },
    ),
    ClientDatasetsModule: (
        {"clients": [TensorDataset(X, Y)]},
        {
            "clients": "lists of samples",
            "val": "sets by client?",
            "test": "sets by client?",
            "split": "split?",
            "collate_fn": "callable?",
            "class_names": "texts?",
            "standardize": "choice?",
            "impute": "choice?",
        },
    ),
    TensorDataModule: (
        {"clients": [(X, Y)]},
        {
            "clients": "choice",
            "val": "evaluation set?",
            "test": "evaluation set?",
            "batch_size": "size of a tensor?",
            "shuffle": "bool",
            "eval_batch_size": "size of a tensor",
            "standardize": "choice?",
            "impute": "choice?",
            "split": "split?",
        },
    ),
    ImageDataModule: (
        {"augment": True},
        {"partitioner": "partitioner?", "augment": "bool", "crop_probability": "unit"},
    ),
    Source: (
        {"dataset": TensorDataset(X, Y), "labels": None},
        {
            "dataset": "any data set",
            "labels": "numbers of any kind?",
            "test_indices": "indices?",
            "class_names": "texts?",
            "collate_fn": "callable?",
            "pools_test": "bool",
        },
    ),
    CIFAR10DataModule: (
        {},
        {
            "data_dir": "path?",
            "partitioner": "partitioner?",
            "augment": "bool",
            "mean": "three channels?",
            "std": "three channels?",
            "download": "bool",
        },
    ),
    MNISTDataModule: ({}, {"data_dir": "path?", "partitioner": "partitioner?", "download": "bool"}),
    EMNISTDataModule: ({}, {"data_dir": "path?", "partitioner": "partitioner?", "classes": "choice"}),
    CovertypeDataModule: (
        {},
        {
            "data_dir": "path?",
            "partitioner": "partitioner?",
            "feature_partitioner": "callable?",
            "class_counts": "choice?",
            "sample_seed": "count or 0",
            "download": "bool",
        },
    ),
    CovertypeDataModule.named: (
        {"name": "COVFEAT-G"},
        {"name": "choice", "data_dir": "path?", "feature_partitioner": "callable?"},
    ),
    ShakespeareDataModule: (
        {},
        {
            "data_dir": "path?",
            "partitioner": "partitioner?",
            "source": "choice",
            "stride": "count",
            "min_lines": "count",
            "fraction": "positive share",
            "min_samples": "count",
            "seed": "count or 0",
            "download": "bool",
        },
    ),
    EICUDataModule: (
        {},
        {"data_dir": "path?", "partitioner": "partitioner?", "cohort": "choice", "impute": "choice"},
    ),
    DMOZDataModule: (
        {},
        {
            "data_dir": "path?",
            "partitioner": "partitioner?",
            "distribution": "count or 0",
            "min_samples": "count",
            "root": "text?",
            "exclude": "texts",
            "max_tokens": "count",
            "cache_dir": "path?",
            "split": "split?",
        },
    ),
    FedDynSyntheticDataModule: (
        {},
        {
            "gamma1": "not negative",
            "gamma2": "not negative",
            "gamma3": "not negative",
            "num_clients": "size of a tensor",
            "same_model": "bool",
            "same_inputs": "bool",
            "seed": "count or 0",
            "split": "split?",
        },
    ),
    FedProxSyntheticDataModule: (
        {},
        {
            "alpha": "not negative",
            "beta": "not negative",
            "iid": "bool",
            "num_clients": "size of a tensor",
            "seed": "count or 0",
            "split": "split?",
        },
    ),
    HuggingFaceDataModule: (
        {"path": "t.csv", "inputs": "x", "label": "y"},
        {
            "path": "path",
            "inputs": "some texts",
            "label": "text",
            "client": "text?",
            "partitioner": "partitioner?",
            "name": "text?",
            "train_split": "text",
            "test_split": "text?",
            "data_files": "data files?",
            "cache_dir": "path?",
            "transform": "callable?",
            "pad_value": "any number",
            "mean": "channels",
            "std": "positive channels",
            "regression": "bool",
            "in_memory": "bool",
        },
    ),
    TableDataModule: (
        {"path": "t.csv", "label": "y"},
        {
            "path": "path",
            "label": "text",
            "client": "text?",
            "features": "texts?",
            "categorical": "texts",
            "partitioner": "partitioner?",
            "test_path": "path?",
            "impute": "choice?",
            "regression": "bool",
        },
    ),
    TorchDatasetDataModule: (
        {"dataset": TensorDataset(X, Y)},
        {
            "dataset": "any data set",
            "partitioner": "partitioner?",
            "targets": "labels?",
            "clients": "keys?",
            "test_dataset": "any data set?",
            "test_targets": "choice?",
            "collate_fn": "callable?",
        },
    ),
}
KINDS |= {
    "choice of two": {"{1, 2}"},  # clients 1 and 2 of 3
    "names": {"['a']"},
    "index without 0": {"3", "np.int64(3)"},  # 0 is the test fold
    "matrix": {"inputs"},
    "unit": {"0", "0.5", "np.float32(0.5)"},
    "three channels": {"[0.5]"},
    "numbers of any kind": {"numbers", "mask", "nans"},  # a partitioner looks at their type
}


@pytest.mark.parametrize(("make", "right", "argument", "kind"), arguments_of(MAKERS))
def test_a_value_means_something_or_is_refused_by_name(
    make: Callable[..., Any], right: dict[str, Any], argument: str, kind: str
) -> None:
    assert not problems(make, right, argument, labels_of(kind))


def test_the_catalogue_is_complete() -> None:
    modules = (fl_lightning.partitioners, fl_lightning.data, datamodules)
    exported = {getattr(module, name) for module in modules for name in module.__all__}
    classes = {thing for thing in exported if inspect.isclass(thing) and not inspect.isabstract(thing)}
    # made by the library, or with the arguments of their base alone
    results = {"FederatedSplit", "LabelPlot", "PartitionStatistics", "QPSolution", "FeatureQPSolution"}
    same = {CIFAR100DataModule, FashionMNISTDataModule, DigitsDataModule}
    assert {cls.__name__ for cls in classes - set(MAKERS) - same} == results
    for make, (_, kinds) in MAKERS.items():
        parameters = inspect.signature(make.__init__ if inspect.isclass(make) else make).parameters.values()
        named = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD} - {"self"}
        assert named - set(kinds) <= {"relations", "sets", "axes"}, name_of(make)


@pytest.mark.parametrize("relations", [None, 3, "ab", ["ab"], [("Top/A",)], [(1, 2)], [None], np.array(3)])
def test_relations(relations: Any) -> None:
    with pytest.raises(TypeError, match="`relations` must be pairs of topics, got"):
        pick_client_topics({"Top/A": 300, "Top/B": 300}, relations)


# ---- numbers of numpy work to the end, and mean the same ----

QUICK = {"burn_in": np.int64(50), "search": np.int64(50)}


@pytest.mark.parametrize(
    ("make", "given", "plain"),
    [
        (IIDPartitioner, {"num_clients": np.int64(4), "seed": np.int32(2)}, {"num_clients": 4, "seed": 2}),
        (
            DirichletPartitioner,
            {"num_clients": np.uint8(4), "alpha": np.float32(0.5), "size_sigma": np.float64(0.25)},
            {"num_clients": 4, "alpha": 0.5, "size_sigma": 0.25},
        ),
        (
            ClasswiseDirichletPartitioner,
            {"num_clients": np.int64(2), "alpha": np.float32(2), "min_partition_size": np.int64(2)},
            {"num_clients": 2, "alpha": 2.0, "min_partition_size": 2},
        ),
        (
            QuantitySkewPartitioner,
            {"num_clients": np.int64(2), "alpha": np.int64(2), "min_partition_size": np.int64(2)},
            {"num_clients": 2, "alpha": 2, "min_partition_size": 2},
        ),
        (
            ShardPartitioner,
            {"num_clients": np.int64(4), "num_shards_per_partition": np.int64(2), "shard_size": np.int64(5)},
            {"num_clients": 4, "num_shards_per_partition": 2, "shard_size": 5},
        ),
        (
            PathologicalPartitioner,
            {"num_clients": np.int64(4), "num_classes_per_partition": np.int64(2)},
            {"num_clients": 4, "num_classes_per_partition": 2},
        ),
        (
            LimitedClassesPartitioner,
            {"num_clients": np.int64(4), "limited_clients": np.array([1, 3]), "num_classes_per_partition": np.int64(1)},
            {"num_clients": 4, "limited_clients": [1, 3], "num_classes_per_partition": 1},
        ),
        (
            QPPartitioner,
            {"num_clients": np.int64(4), "class_alpha": np.float32(0.5), "step": np.float32(0.5), **QUICK},
            {"num_clients": 4, "class_alpha": 0.5, "step": 0.5, "burn_in": 50, "search": 50},
        ),
        (
            functools.partial(QPPartitioner, 4, burn_in=50, search=50),
            {"burn_in_stop": np.float32(1.5)},
            {"burn_in_stop": 1.5},
        ),
        (ExplicitPartitioner, {"assignment": [np.array([1, 2]), torch.tensor([0])]}, {"assignment": [[1, 2], [0]]}),
    ],
)
def test_numbers_of_numpy_are_numbers(make: Any, given: dict[str, Any], plain: dict[str, Any]) -> None:
    assert make(**given)(LABELS) == make(**plain)(LABELS)
    assert repr(make(**given)) == repr(make(**plain))


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (ClientSplit(np.int64(4), np.int64(1), np.int64(2), val_fold=np.int64(3)), ClientSplit(4, 1, 2, val_fold=3)),
        (SampleSplit(np.float32(0.25), np.float64(0.5), np.int64(1)), SampleSplit(0.25, 0.5, 1)),
        (SampleSplit(0.25, 0.5, stratify=np.True_), SampleSplit(0.25, 0.5, stratify=True)),
        (WithinClientSplit(np.float32(0.25), np.float32(0.5), np.int64(3)), WithinClientSplit(0.25, 0.5, 3)),
        (OrderedSplit(np.float32(0.25), np.float32(0.25), np.int64(1)), OrderedSplit(0.25, 0.25, 1)),
        (
            CropSplit(np.int64(2), np.int64(2), np.int64(1), OrderedSplit(gap=0), np.int64(1)),
            CropSplit(2, 2, 1, OrderedSplit(gap=0), 1),
        ),
    ],
)
def test_splits_take_numbers_of_numpy(given: Split, plain: Split) -> None:
    made, expected = (split.apply(LABELS, IIDPartitioner(4)) for split in (given, plain))
    assert made.partition == expected.partition
    assert repr(made) == repr(expected)
    assert repr(given) == repr(plain)


def test_data_modules_take_numbers_of_numpy() -> None:
    data = TensorDataModule([(X, Y)], test=(X, Y), batch_size=np.int64(16), eval_batch_size=np.int32(30))  # type: ignore[arg-type]
    data.setup()
    assert data.num_client_batches(0) == 3
    assert [len(x) for x, _ in data.client_batches(0, generator=torch.Generator())] == [16, 16, 8]
    assert [len(x) for x, _ in data.test_dataloader()] == [30, 10]
    assert [len(x) for x, _ in client_batches(TensorDataset(X, Y), 30, None, False)] == [30, 10]
    federated = FedDynSyntheticDataModule(np.float32(1), num_clients=np.int64(4), seed=np.int64(1))  # type: ignore[arg-type]
    plain = FedDynSyntheticDataModule(1.0, num_clients=4, seed=1)
    for module in (federated, plain):
        module.setup()
    assert federated.data_fingerprint() == plain.data_fingerprint()


# ---- arguments in the wrong order or of the wrong form ----


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DirichletPartitioner(0.3, 100), "`num_clients` must be a whole number of at least 1, got 0.3"),
        (lambda: ClientSplit(0, 5), "`num_folds` must be a whole number of at least 3, got 0"),
        (
            lambda: CIFAR10DataModule(IID, "data"),
            "`partitioner` must be a partitioner, .* got 'data'",
        ),
        (lambda: CIFAR10DataModule(IID), r"`data_dir` must be a path, .* got IIDPartitioner\(.*argument `partitioner`"),
        (lambda: label_counts(LABELS, PARTITION), r"`partition` must be a Partition, got <ndarray of shape \(40,\)>"),
        (lambda: label_counts(IID, LABELS), r"must be a Partition, got IIDPartitioner\(.* A partitioner makes one"),
        (lambda: add_feature_noise(PARTITION, X, 0.1), r"`x` must be a Tensor, got Partition\(2 clients"),
        (
            lambda: ClientSplit(3).apply(IID, LABELS),
            "`partitioner` must be a partitioner, .* got <ndarray of",
        ),
        (lambda: ClientSplit(3).apply(LABELS, IIDPartitioner), "got the class IIDPartitioner. Make one first"),
        (lambda: next(diffuse(LABELS, GRAPH, 3)), "`graph` must be a TopicGraph, got <ndarray of shape"),
        (
            lambda: TensorDataModule({"a": (X, Y)}),
            r"`clients` must be a list .* Give list\(clients.values\(\)\).$",
        ),
        (lambda: TensorDataModule(X, Y), r"`clients` must be a list with one tuple of tensors per client, got <Tensor"),
        (lambda: TensorDataModule(X, Y), r"TorchDatasetDataModule\(TensorDataset\(x, y\), partitioner\)"),
        (lambda: TensorDataModule((X, Y)), r"`clients\[0\]` must be a tuple .* For a single client give \[\(x, y\)\]"),
        (lambda: TensorDataModule([(X, LABELS)]), r"`clients\[0\]` must be a tuple of tensors, .* Convert arrays with"),
        (
            lambda: TensorDataModule([(X, Y)], val=X),
            r"`val` must be a tuple of tensors, as \(x, y\), or a list",
        ),
        (lambda: LimitedClassesPartitioner(3, [True, False, False]), r"a mask of booleans, .*`numpy.flatnonzero\(mask"),
        (lambda: LimitedClassesPartitioner(3, np.array([True, False, False])), "not a mask of booleans"),
        (lambda: ExplicitPartitioner([LABELS == 0, LABELS == 1]), "`assignment` is no valid partition: .* a mask"),
        (
            lambda: SampleSplit(test="official").apply(LABELS, IID, LABELS == 0),
            "integers from 0 to 39, .* From a mask",
        ),
        (
            lambda: Source(DataLoader(TensorDataset(X, Y)), LABELS),
            "must have __len__ .* DataLoader's `dataset`",
        ),
        (lambda: Source(TensorDataset(X, Y), LABELS, LABELS == 0), r"Give `numpy.flatnonzero\(mask\)`"),
        (lambda: Source(TensorDataset(X, Y), LABELS, class_names="abcd"), r"sequence of texts, got 'abcd'. Give \['ab"),
        (lambda: plot_label_distributions(PARTITION, LABELS, class_names="abcd"), "`class_names` must be a sequence"),
        (lambda: DMOZDataModule(exclude="News"), r"`exclude` must be a sequence of names, got 'News'. Give \['News'\]"),
        (lambda: TorchDatasetDataModule(TensorDataset(X, Y), test_targets=Y), "`test_targets` are of `test_dataset`"),
        (
            lambda: TorchDatasetDataModule(TensorDataset(X, Y), clients=[None] * 40),
            "`clients` must be numbers or texts, and none missing, got object. Fill in missing ones",
        ),
        (
            lambda: TorchDatasetDataModule(TensorDataset(X, Y), clients=[float("nan")] * 40),
            "`clients` must be numbers or texts, and none missing, got float64 with NaN",
        ),
        (lambda: c_score([[1.0, float("nan")]]), "`counts` must hold finite numbers"),
    ],
)
def test_arguments_in_the_wrong_place_or_form(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_a_value_is_told_from_a_number_in_an_array() -> None:
    with pytest.raises(ValueError, match=r"got tensor\(3\)"):
        IIDPartitioner(torch.tensor(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got array\(3\)"):
        IIDPartitioner(np.array(3))  # type: ignore[arg-type]


def test_large_values_do_not_flood_the_error() -> None:
    for value in (torch.zeros(1000, 1000), list(range(100_000)), "a" * 100_000):
        with pytest.raises(ValueError, match="`num_clients` must be a whole number of at least 1, got") as error:
            IIDPartitioner(value)  # type: ignore[arg-type]
        assert len(str(error.value)) < 200


def test_more_buckets_than_values_are_as_many() -> None:
    values = [5.0, 1.0, 1.0, 3.0]
    assert quantile_buckets(values, 10**30).tolist() == quantile_buckets(values, 100).tolist() == [2, 0, 0, 1]
