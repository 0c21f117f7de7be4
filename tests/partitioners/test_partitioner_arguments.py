"""Nonsense given to every partitioner and split: the error names the argument, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from fl_lightning.data import ClientSplit, SampleSplit, WithinClientSplit
from fl_lightning.partitioners import (
    ClasswiseDirichletPartitioner,
    DirichletPartitioner,
    ExplicitPartitioner,
    FeatureQPPartitioner,
    IIDPartitioner,
    LimitedClassesPartitioner,
    NaturalPartitioner,
    PathologicalPartitioner,
    QPPartitioner,
    QuantitySkewPartitioner,
    ShardPartitioner,
    TopicGraph,
    TopicGraphPartitioner,
    pick_client_topics,
)

LABELS = np.repeat(np.arange(4), 25)
NO_NUMBER: list[Any] = [float("nan"), float("inf"), "a", None, True, -1]
NO_COUNT: list[Any] = [0, -1, 1.5, float("nan"), "a", None, True]
GRAPH = TopicGraph(("Top/A", "Top/B"), np.array([[0, 1]]))

MAKERS: dict[str, tuple[Callable[..., Any], list[str], list[str]]] = {
    # what makes it, its arguments that are counts, and those that are numbers
    "iid": (IIDPartitioner, ["num_clients"], []),
    "dirichlet": (partial(DirichletPartitioner, alpha=1.0), ["num_clients"], ["alpha", "size_sigma"]),
    "classwise": (
        partial(ClasswiseDirichletPartitioner, alpha=1.0),
        ["num_clients", "min_partition_size"],
        ["alpha"],
    ),
    "quantity": (partial(QuantitySkewPartitioner, alpha=1.0), ["num_clients", "min_partition_size"], ["alpha"]),
    "shards": (ShardPartitioner, ["num_clients", "num_shards_per_partition"], []),
    "pathological": (
        partial(PathologicalPartitioner, num_classes_per_partition=2),
        ["num_clients", "num_classes_per_partition"],
        [],
    ),
    "limited": (
        partial(LimitedClassesPartitioner, limited_clients=[0]),
        ["num_clients", "num_classes_per_partition"],
        [],
    ),
    "qp": (QPPartitioner, ["num_clients"], ["size_alpha", "class_alpha", "step"]),
    "feature-qp": (
        FeatureQPPartitioner,
        ["num_clients", "num_buckets"],
        ["size_alpha", "class_alpha", "feature_alpha", "step"],
    ),
}


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [(name, argument, value) for name, (_, counts, _) in MAKERS.items() for argument in counts for value in NO_COUNT],
)
def test_counts(name: str, argument: str, value: Any) -> None:
    make = MAKERS[name][0]
    with pytest.raises(ValueError, match=f"`{argument}` must be a whole number of at least 1, got"):
        make(**{"num_clients": 3, argument: value})


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [(name, argument, value) for name, (_, _, reals) in MAKERS.items() for argument in reals for value in NO_NUMBER],
)
def test_numbers(name: str, argument: str, value: Any) -> None:
    make = MAKERS[name][0]
    with pytest.raises(ValueError, match=f"`{argument}` must be a finite number"):
        make(**{"num_clients": 3, argument: value})


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "feature-qp"])
def test_more_clients_than_samples(name: str) -> None:
    make = partial(MAKERS[name][0], num_clients=10_000_000)
    with pytest.raises(
        ValueError, match=r"`num_clients` is 10,000,000, but there are only 100 samples.*Give at most 100"
    ):
        make()(LABELS)


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "feature-qp"])
@pytest.mark.parametrize("labels", [np.array([np.nan]), ["a"], [None], None])
def test_labels(name: str, labels: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"`labels` must be"):
        MAKERS[name][0](num_clients=3)(labels)


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "feature-qp"])
def test_no_labels(name: str) -> None:
    with pytest.raises(ValueError, match=r"`labels` is empty: there are no samples to share out.*Look at the data set"):
        MAKERS[name][0](num_clients=3)([])


@pytest.mark.parametrize("split", [ClientSplit(), SampleSplit(), WithinClientSplit()])
def test_nothing_to_split(split: Any) -> None:
    with pytest.raises(ValueError, match="`labels_or_num_samples` is empty: there are no samples to split"):
        split.apply([], lambda labels: [[0], [1]])


def test_a_split_that_leaves_no_sample_to_share_out() -> None:
    with pytest.raises(ValueError, match=r"`labels` is empty: .* a split that sets samples aside"):
        SampleSplit(val=0.0, test="official").apply(LABELS, lambda labels: [[0]], np.arange(len(LABELS)))


@pytest.mark.parametrize("given", [0, None, True, "a", ["a"], [0.5], [3], [-1], [0, 0], [0, 1, 2], []])
def test_limited_clients(given: Any) -> None:
    with pytest.raises(ValueError, match="`limited_clients` must name at least one client and not all, each once"):
        LimitedClassesPartitioner(3, given)


@pytest.mark.parametrize("value", [1, 0.5, float("nan"), "a", True])
@pytest.mark.parametrize("make", [QPPartitioner, FeatureQPPartitioner])
def test_the_burn_ins_stop(make: Callable[..., Any], value: Any) -> None:
    with pytest.raises(ValueError, match="`burn_in_stop` must be greater than 1, the optimum itself, got"):
        make(3, burn_in_stop=value)


@pytest.mark.parametrize("given", [None, 5, [0, 1], {1: [0], "a": [1]}])
def test_assignments(given: Any) -> None:
    with pytest.raises(TypeError, match="`assignment` must be a partition, a path, a list with one array"):
        ExplicitPartitioner(given)


@pytest.mark.parametrize("keys", [[], np.zeros((2, 2), int), [0.5], [None]])
def test_keys(keys: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"`keys` must be|`keys` is empty"):
        NaturalPartitioner()(np.array(keys))


@pytest.mark.parametrize(
    ("topics", "edges", "message"),
    [
        ("ab", [], "`topics` must be one or more different paths, got 'ab'"),
        ((), [], "`topics` must be one or more different paths, got 0"),
        (("a", "b"), [0, 1, 1], r"`edges` must be pairs of clients, integers of shape .* got int64 of shape \(3,\)"),
        (("a", "b"), [["x", "y"]], r"`edges` must be pairs of clients, integers .* got <U1 of shape \(1, 2\)"),
        (("a", "b"), [[0, 2]], "`edges` must be pairs of two different clients from 0 to 1"),
    ],
)
def test_topic_graphs(topics: Any, edges: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TopicGraph(topics, np.array(edges))


@pytest.mark.parametrize("count", [-5, float("nan"), 1.5, None])
def test_counts_of_topics(count: Any) -> None:
    with pytest.raises(ValueError, match=r"`counts\['Top/A'\]` must be a whole number of at least 0, got"):
        pick_client_topics({"Top/A": count}, [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": -1}, "`steps` must be a whole number of at least 0, got -1. 'iid' gives"),
        ({"steps": "x"}, "`steps` must be a whole number of at least 0, got 'x'"),
        ({"stay_weight": float("nan")}, "`stay_weight` must be a finite number greater than 0, got nan"),
        ({"seed": -1}, "`seed` must be a whole number of at least 0, got -1"),
    ],
)
def test_diffusions(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TopicGraphPartitioner(GRAPH, **options)


@pytest.mark.parametrize("make", [SampleSplit, WithinClientSplit])
@pytest.mark.parametrize("argument", ["val", "test"])
@pytest.mark.parametrize("value", [-0.1, 1, float("nan"), None, True])
def test_fractions(make: Callable[..., Any], argument: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"`{argument}` must be a number in \[0, 1\), got"):
        make(**{argument: value})


@pytest.mark.parametrize("split", [ClientSplit(), SampleSplit(), WithinClientSplit()])
def test_what_is_split(split: Any) -> None:
    with pytest.raises(TypeError, match=r"`partitioner` must be a partitioner, .* or a function .* got None"):
        split.apply(LABELS, None)
    for given in (None, "a", 2.5):
        with pytest.raises(ValueError, match="`labels_or_num_samples` must be the class of each sample"):
            split.apply(given, IIDPartitioner(10))
