"""A user's own partitioner: one public method, whose result is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fl_lightning.data import ClientSplit, SampleSplit, WithinClientSplit
from fl_lightning.partitioners import IIDPartitioner, NaturalPartitioner, Partition, Partitioner

LABELS = np.array([5, 5, 9, 9, 9, 5])


class RoundRobin(Partitioner):
    def assign(self, classes):
        return [range(client, len(classes), self.num_clients) for client in range(self.num_clients)]


class Returns(Partitioner):
    """Returns what it is given, for 2 clients."""

    def __init__(self, result: Any) -> None:
        super().__init__(2)
        self.result = result

    def assign(self, classes):
        return self.result


def lists(partition: Partition) -> list[list[int]]:
    return [indices.tolist() for indices in partition.indices]


def test_one_method_makes_a_partitioner() -> None:
    assert lists(RoundRobin(2)(LABELS)) == [[0, 2, 4], [1, 3, 5]]
    assert repr(RoundRobin(2)) == "RoundRobin(num_clients=2, seed=0)"


def test_classes_are_numbered_without_gaps_and_the_generator_has_the_seed() -> None:
    seen = []

    class Looks(Partitioner):
        def assign(self, classes):
            seen.append((classes.tolist(), self.generator().random()))
            return [[0], [1]]

    Looks(2, seed=3)(LABELS)
    Looks(2, seed=3)(LABELS)
    assert seen == [([0, 0, 1, 1, 1, 0], np.random.default_rng(3).random())] * 2


def test_a_class_without_the_method_cannot_be_made() -> None:
    class Empty(Partitioner):
        pass

    with pytest.raises(TypeError, match=r"abstract method '?assign'?"):
        Empty(2)


@pytest.mark.parametrize(
    "result",
    [
        [[0, 1], [2]],
        ((0, 1), (2,)),
        [np.array([0, 1], dtype=np.int32), np.array([2], dtype=np.uint8)],
        [torch.tensor([0, 1]), torch.tensor([2])],
        (part for part in ([0, 1], [2])),
        Partition((np.array([0, 1]), np.array([2]))).indices,
    ],
)
def test_indices_may_be_lists_arrays_or_tensors(result: Any) -> None:
    assert lists(Returns(result)(LABELS)) == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (None, TypeError, r"`Returns.assign` must return a Partition, or a list .* got None"),
        (5, TypeError, r"`Returns.assign` must return a Partition, or a list .* got 5"),
        ({0: [0], 1: [1]}, TypeError, r"`Returns.assign` must return a Partition, or a list .* got \{0: \[0\]"),
        (
            np.zeros(6, int),
            TypeError,
            r"got an array of shape \(6,\). If it holds the client of each sample, give .*flatnonzero",
        ),
        ([[0]], ValueError, "indices of 2 clients, which is `num_clients`, got 1"),
        ([[0], [1], [2]], ValueError, "indices of 2 clients, which is `num_clients`, got 3"),
        ([[0, 1], [1]], ValueError, "no valid partition: .* sample 1 is given more than once, to clients 0 and 1"),
        ([[0, 1, 0], [2]], ValueError, "no valid partition: .* sample 0 is given more than once, twice to client 0"),
        ([[0], [6]], ValueError, "gave sample 6 to client 1, but there are only 6 samples, 0 to 5"),
        ([[0], [-1]], ValueError, "no valid partition: `indices` must not be negative, got -1"),
        ([[0.0], [1.0]], TypeError, "no valid partition: `indices` must hold integers, but client 0's are float64"),
        ([[True, False], [1]], TypeError, r"client 0's are bool, a mask. Give `numpy.flatnonzero\(mask\)`"),
        ([["a"], [1]], TypeError, "no valid partition: `indices` must hold integers, but client 0's are <U1"),
        ([[[0]], [1]], ValueError, r"no valid partition: `indices` must hold 1-D arrays, .* shape \(1, 1\)"),
        ([[0, 1], []], ValueError, "must give each client a sample, but client 1 has none"),
    ],
)
def test_a_result_that_is_no_partition(result: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Returns(result)(LABELS)


@pytest.mark.parametrize(
    "labels",
    [
        LABELS.tolist(),
        tuple(LABELS),
        torch.from_numpy(LABELS),
        torch.tensor([5.0, 5, 9, 9, 9, 5]).long(),
        LABELS == 9,
        np.array(LABELS.tolist(), dtype=object),
        LABELS.astype(np.int8),
    ],
)
def test_labels_may_be_lists_and_tensors(labels: Any) -> None:
    assert IIDPartitioner(2)(labels) == IIDPartitioner(2)(LABELS)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (None, ValueError, "`labels` must be 1-D, one for each sample, got None"),
        (3, ValueError, "`labels` must be 1-D, one for each sample, got 3"),
        (np.eye(6), ValueError, r"1-D.*got shape \(6, 6\). Use `labels.argmax\(1\)`"),
        (LABELS[:, None], ValueError, r"1-D.*got shape \(6, 1\). Use `labels.squeeze\(1\)`"),
        (np.ones((6, 2)), ValueError, r"1-D.*got shape \(6, 2\)\.$"),
        ([[1], [1, 2]], TypeError, r"`labels` must be an array, a list or a tensor, got \[\[1\], \[1, 2\]\]"),
        (LABELS / 2, TypeError, "`labels` must be integers, got float64. Number the classes"),
        (["a"] * 6, TypeError, "`labels` must be integers, got <U1. Number the classes"),
        (torch.zeros(6), TypeError, "`labels` must be integers, got float32"),
        ([], ValueError, "`labels` is empty: there are no samples"),
    ],
)
def test_labels_of_the_wrong_kind(labels: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        IIDPartitioner(2)(labels)


SPLITS = [ClientSplit(3), SampleSplit(0.0, 0.0), WithinClientSplit(0.0, 0.0)]


@pytest.mark.parametrize("split", SPLITS)
def test_a_plain_function_is_a_partitioner(split: Any) -> None:
    made = split.apply(LABELS, lambda labels: [np.flatnonzero(labels == 9), [0], [1, 5]])
    assert lists(made.partition) == [[2, 3, 4], [0], [1, 5]]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(
    ("partitioner", "message"),
    [
        ("iid", "must be a partitioner, such as IIDPartitioner.num_clients=100., or a function .* got 'iid'.$"),
        (Partition(([0], [1])), r"got Partition\(2 clients.* For a Partition: ExplicitPartitioner\(partition\)\.$"),
        (Path("p.json"), r"For a saved partition: ExplicitPartitioner\(path\)\.$"),
        ("runs/p.json", r"For a saved partition: ExplicitPartitioner\(path\)\.$"),
        ([[0], [1]], r"For the sample indices of each client: ExplicitPartitioner\(indices\)\.$"),
        ({"a": [0], "b": [1]}, r"For the sample indices of each client: ExplicitPartitioner\(indices\)\.$"),
        ([TensorDataset(torch.ones(2))] * 2, r"For a data set of each client: ClientDatasetsModule\(clients\)\.$"),
        (IIDPartitioner, r"got the class IIDPartitioner. Make one first: IIDPartitioner\(...\)"),
        (lambda: IIDPartitioner(2), r"must be a function of one argument, the labels, got <lambda>\(\)"),
        (lambda labels, features: [labels], r"got <lambda>\(labels, features\) .*`functools.partial`"),
        (lambda labels: IIDPartitioner(2), r"`partitioner` must return a Partition, .*got IIDPartitioner\(num"),
        (lambda labels: None, "`partitioner` must return a Partition, or a list .* got None"),
        (lambda labels: labels, r"`partitioner` must return the sample indices of each client, got an array of shape"),
    ],
)
def test_something_that_is_no_partitioner(split: Any, partitioner: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        split.apply(LABELS, partitioner)


def test_a_functions_samples_must_exist() -> None:
    with pytest.raises(ValueError, match="`partitioner` gave sample 6 to client 1, but there are only 6 samples"):
        WithinClientSplit().apply(LABELS, lambda labels: [[0], [6]])
    # its indices count the samples that the split leaves
    with pytest.raises(ValueError, match="`partitioner` gave sample 5 to client 1, but there are only 3 samples"):
        SampleSplit(0.0, 0.5).apply(LABELS, lambda labels: Partition((np.array([0]), np.array([5]))))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", [list, lambda clients: Partition(tuple(np.array(c, dtype=int) for c in clients))])
def test_a_function_gives_each_client_a_sample(split: Any, kind: Any) -> None:
    expected = (
        r"^`partitioner` must give each client a sample, but clients 1, 3 have none \(2 of 4 clients\)\. Leave them "
        r"out, or give them some\.$"
    )
    with pytest.raises(ValueError, match=expected):
        split.apply(LABELS, lambda labels: kind([[0, 1], np.array([], dtype=int), [2], np.array([], dtype=int)]))


def test_splits_take_lists_tensors_and_numbers_of_samples() -> None:
    for labels in (LABELS.tolist(), torch.from_numpy(LABELS), LABELS):
        split = WithinClientSplit(0.0, 0.0).apply(labels, NaturalPartitioner())
        assert lists(split.partition) == [[0, 1, 5], [2, 3, 4]]
    for number in (6, np.int64(6)):
        assert WithinClientSplit().apply(number, IIDPartitioner(2)).partition == IIDPartitioner(2)(LABELS)


def test_representations() -> None:
    assert repr(ClientSplit(val_fold=2)) == "ClientSplit(num_folds=5, fold=0, seed=0, val_fold=2)"
    assert repr(SampleSplit(test="official")) == "SampleSplit(val=0.1, test='official', seed=0)"
    assert repr(IIDPartitioner(2)(LABELS)) == "Partition(2 clients, 6 samples, 3 to 3 each)"
    assert repr(NaturalPartitioner(2)) == "NaturalPartitioner(min_partition_size=2)"
    split = SampleSplit(0.0, 0.5).apply(LABELS, IIDPartitioner(2))
    assert repr(split) == "FederatedSplit(train: 3 samples of 2 clients, val: 0 samples, test: 3 samples)"


def test_a_partitioner_that_does_not_call_its_base_class_says_so() -> None:
    class Forgets(RoundRobin):
        def __init__(self) -> None:
            self.shift = 1

    with pytest.raises(AttributeError, match=r"`Forgets.__init__` does not call `super\(\).__init__\(num_clients"):
        Forgets()(np.arange(6))
