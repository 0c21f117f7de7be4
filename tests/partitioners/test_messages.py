"""Errors about partitions: each is provoked once, and the file beside this one has what they say."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers.written import all_told, assert_as_in

from fl_lightning import partitioners
from fl_lightning.data import SampleSplit, WithinClientSplit
from fl_lightning.partitioners import Partition, Partitioner, TopicGraph
from fl_lightning.partitioners.quadratic.rounding import round_columns

FEW = np.repeat([0, 1, 2, 3], [7, 6, 4, 3])
SIX = np.array([5, 5, 9, 9, 9, 5])
RAGGED = [[1], [1, 2]]
ONE_EACH = Partition(([0], [1]))
PATH = TopicGraph(("Top/A", "Top/B", "Top/C"), np.array([[2, 1], [0, 1]]))
HEADER = {"format": "fl_lightning.partition", "version": 1, "num_clients": 2}


def returned(result: Any) -> Partition:
    """Return what a user's own partitioner of six samples among two clients makes of what it returns."""
    return type("Returns", (Partitioner,), {"assign": lambda partitioner, classes: result})(2)(SIX)


def load(folder: Path, content: str) -> Partition:
    (folder / "partition.json").write_text(content)
    return Partition.load(folder / "partition.json")


def load_without_header(folder: Path) -> Partition:
    import pandas

    pandas.DataFrame({"client": [0], "sample": [0]}).to_parquet(folder / "partition.parquet")
    return Partition.load(folder / "partition.parquet")


def explicit(assignment: Any) -> Partition:
    return partitioners.ExplicitPartitioner(assignment)(np.zeros(5, dtype=int))


def by_features(labels: Any, features: Any) -> Partition:
    return partitioners.FeatureQPPartitioner(10)(labels, features)


def by_topics(*homes: int) -> Partition:
    return partitioners.TopicGraphPartitioner(PATH)(np.array(homes, dtype=np.int64))


def topics(root: str) -> TopicGraph:
    counts = {"Top/A": 9, "Top/A/X": 9, "Top/A/X/P": 9, "Top/A/X/Q": 9}
    relations = [("Top/A", "Top/A/X"), ("Top/A/X/P", "Top/A/X/Q")]
    return partitioners.pick_client_topics(counts, relations, min_samples=5, root=root)


#: What is refused, perhaps with a folder.
CALLS: list[Callable[[Path], Any]] = [
    # Twenty samples of four classes, with 7, 6, 4 and 3 each.
    lambda _: partitioners.ShardPartitioner(7, 3)(FEW),
    lambda _: partitioners.ShardPartitioner(3, 2, shard_size=4)(FEW),
    lambda _: partitioners.PathologicalPartitioner(2, 5)(FEW),
    # Two classes have enough samples for six clients, one of them just enough.
    lambda _: partitioners.PathologicalPartitioner(6, 4)(FEW),
    lambda _: partitioners.PowerLawPartitioner(2, 5)(FEW),
    lambda _: partitioners.PowerLawPartitioner(4, 2, 3)(FEW),
    lambda _: partitioners.QuantitySkewPartitioner(3, 1.0)(FEW),
    lambda _: partitioners.ClasswiseDirichletPartitioner(10, 1e-3, 1)(FEW),
    lambda _: partitioners.LimitedClassesPartitioner(2, [0], 5)(FEW),
    lambda _: partitioners.LimitedClassesPartitioner(8, [0, 1], 4)(FEW),
    lambda _: partitioners.LimitedClassesPartitioner(4, [2, 2]),
    lambda _: partitioners.LimitedClassesPartitioner(4, [8, 1]),
    lambda _: partitioners.LimitedClassesPartitioner(4, np.array(1)),
    lambda _: partitioners.DirichletPartitioner(2, alpha=100.0, max_classes_per_partition=1)(FEW),
    lambda _: partitioners.DirichletPartitioner(20, alpha=1.0, size_sigma=3.0)(np.zeros(21, dtype=int)),
    lambda _: partitioners.IIDPartitioner(2_000)([0] * 1_500),
    lambda _: partitioners.IIDPartitioner(2)(np.zeros((4, 1))),
    lambda _: partitioners.QPPartitioner(50, 0.5).solve(np.array([25, 26])),
    lambda _: partitioners.QPPartitioner(2).solve(np.array([3, 0])),
    lambda _: partitioners.QPPartitioner(2).solve(np.array([], dtype=int)),
    lambda _: partitioners.QPPartitioner(2).solve(RAGGED),
    lambda _: partitioners.QPPartitioner(2).solve(np.array([[3, 4]])),
    lambda _: partitioners.QPPartitioner(2).solve(np.array([3.0, 4.5])),
    lambda _: round_columns(np.array([[0.0, 0.0], [2.0, 1.0]]), np.random.default_rng(0)),
    lambda _: by_features(FEW * 0.5, FEW),
    lambda _: by_features(FEW, np.zeros((2, 2, 2))),
    lambda _: by_features(FEW, {"area": np.arange(3)}),
    lambda _: by_features(FEW, {"area": RAGGED}),
    lambda _: by_features(FEW, RAGGED),
    lambda _: by_features(FEW, np.full(20, np.nan)),
    lambda _: by_features(np.arange(100_000), np.arange(100_000)),
    lambda _: partitioners.FeatureQPPartitioner(18, 0.5)(FEW, FEW),
    # A split has set samples aside, whose features the partitioner still has.
    lambda _: SampleSplit().apply(FEW, functools.partial(by_features, features=FEW)),
    lambda _: partitioners.quantile_buckets(RAGGED, 2),
    # Clients that are known.
    lambda _: partitioners.NaturalPartitioner(min_partition_size=4)(SIX),
    lambda _: partitioners.NaturalPartitioner()(np.ones(4)),
    lambda _: partitioners.NaturalPartitioner()(np.ones((2, 3), dtype=int)),
    lambda _: partitioners.NaturalPartitioner()(RAGGED),
    lambda _: explicit([[0], [5]]),
    lambda _: explicit([[0], [0]]),
    # Topics.
    lambda _: by_topics(0, 1, 3),
    lambda _: by_topics(-1, 1, 2),
    lambda _: by_topics(0, 0, 2),
    lambda _: TopicGraph(("Top/A", "Top/B", "Top/A"), []),
    lambda _: TopicGraph(("Top/A", "Top/B"), np.array([[0, 1, 1]])),
    lambda _: TopicGraph(("Top/A", "Top/B"), RAGGED),
    lambda _: TopicGraph(("Top/A", "Top/B"), np.array([[0, -1]])),
    lambda _: PATH.homes(["Top/World/A"]),
    # P and Q alone are kept; A and X stay outside, and A cannot be merged.
    lambda _: topics(root="Top/A/X/P"),
    lambda _: topics(root="Top/B"),
    # What a user's own partitioner returns.
    lambda _: returned(None),
    lambda _: returned({0: [0], 1: [1]}),
    lambda _: returned([[0], [1], [2]]),
    lambda _: returned([[0], [4, 2], [2]]),
    lambda _: returned([[0], [6]]),
    lambda _: returned([[0], [2, -3]]),
    lambda _: returned([[0.0], [1.0]]),
    lambda _: returned([[], []]),
    lambda _: WithinClientSplit().apply(SIX, lambda labels: [[0], [6]]),
    # The indices of a function count the samples that the split leaves.
    lambda _: SampleSplit(0.0, 0.5).apply(SIX, lambda labels: Partition(([0], [5]))),
    # Partitions and their files.
    lambda _: Partition(()),
    lambda _: Partition(([0], [[1]])),
    lambda here: ONE_EACH.save(here / "partition.npz"),
    lambda here: load(here, "[1"),
    lambda here: load(here, json.dumps(HEADER)),
    lambda here: load(here, json.dumps({**HEADER, "format": "another", "indices": [[0], [1]]})),
    lambda here: load(here, json.dumps({**HEADER, "version": 9, "indices": [[0], [1]]})),
    lambda here: load(here, json.dumps({**HEADER, "indices": [[0]]})),
    lambda here: load(here, json.dumps({**HEADER, "indices": [[1.5], [3]]})),
    lambda here: load(here, json.dumps({**HEADER, "indices": [[1], [1]]})),
    lambda here: load(here, json.dumps({**HEADER, "fingerprint": "of another", "indices": [[0], [1]]})),
    load_without_header,
    # Numbers of samples, pictures, noise.
    lambda _: partitioners.c_score(np.array([1, 2])),
    lambda _: partitioners.c_score(np.array([[1, -2]])),
    lambda _: partitioners.c_score(np.zeros((2, 2))),
    lambda _: partitioners.c_score(np.array([[1, 2], [0, 0]])),
    lambda _: partitioners.c_score(RAGGED),
    lambda _: partitioners.label_entropy(np.array([1, 2])),
    lambda _: partitioners.partition_statistics(ONE_EACH, np.array([4])),
    lambda _: partitioners.plot_label_distributions(ONE_EACH, SIX, client_names=["a", "b", "c"]),
    lambda _: partitioners.plot_label_distributions(ONE_EACH, SIX, class_names=["a"]),
    lambda _: partitioners.add_feature_noise(torch.arange(2), ONE_EACH, level=1.0),
]


def test_errors(tmp_path: Path) -> None:
    assert_as_in(Path(__file__).with_suffix(".txt"), all_told(CALLS, tmp_path), tmp_path)
