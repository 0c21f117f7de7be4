"""Clients that are known beforehand: by a key of each sample, or by their indices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_lightning.data import ClientSplit, SampleSplit
from fl_lightning.partitioners import ExplicitPartitioner, FlowerPartitioner, NaturalPartitioner, Partition

KEYS = np.array(["romeo", "juliet", "nurse", "juliet", "romeo", "juliet"])


def lists(partition: Partition) -> list[list[int]]:
    return [indices.tolist() for indices in partition.indices]


def test_one_client_for_each_key_in_ascending_order() -> None:
    numbers = np.array([30, -2, 30, 4])
    for keys, least, indices, names in [
        (KEYS, 1, [[1, 3, 5], [2], [0, 4]], ["juliet", "nurse", "romeo"]),
        (KEYS.astype(object), 1, [[1, 3, 5], [2], [0, 4]], ["juliet", "nurse", "romeo"]),
        (KEYS.tolist(), 2, [[1, 3, 5], [0, 4]], ["juliet", "romeo"]),
        (numbers, 1, [[1], [3], [0, 2]], ["-2", "4", "30"]),
        (numbers.astype(object), 1, [[1], [3], [0, 2]], ["-2", "4", "30"]),
    ]:
        partitioner = NaturalPartitioner(min_partition_size=least)
        assert lists(partitioner(keys)) == indices
        assert partitioner.client_names(keys) == names


def test_a_split_takes_keys_in_place_of_labels() -> None:
    keys = np.repeat(["a", "b", "c", "d", "e"], 4)
    split = ClientSplit().apply(keys, NaturalPartitioner())

    assert [len(part) for part in (split.train, split.val, split.test)] == [3, 1, 1]
    assert SampleSplit(val=0.2, test=0.0).apply(keys, NaturalPartitioner()).partition.sizes.sum() == 16


def test_an_explicit_assignment_is_kept(tmp_path: Path) -> None:
    expected = Partition((np.array([4, 0]), np.array([2])))
    expected.save(tmp_path / "partition.json")

    for assignment in (expected, [[4, 0], [2]], {7: [2], 3: np.array([4, 0])}, tmp_path / "partition.json"):
        assert ExplicitPartitioner(assignment)(np.zeros(5, dtype=int)) == expected  # type: ignore[arg-type]


def test_a_partitioner_of_flwr_datasets_is_asked_who_holds_what() -> None:
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    labels = np.arange(40) % 4

    by_size = FlowerPartitioner(partitioner.SizePartitioner([30, 10]))
    assert lists(by_size(labels)) == [list(range(30)), list(range(30, 40))]
    assert by_size(labels) == by_size(labels)
    by_key = FlowerPartitioner(partitioner.NaturalIdPartitioner("y"), column="y")
    assert by_key(labels) == NaturalPartitioner()(labels)
    shards = FlowerPartitioner(partitioner.DirichletPartitioner(4, "label", 1.0, min_partition_size=1))
    assert SampleSplit(0.0, 0.2).apply(labels, shards).partition.sizes.sum() == 32


def test_an_object_of_flowers_shape_is_asked_by_the_position_of_samples() -> None:
    class Halves:
        num_partitions = 2

        def load_partition(self, partition_id: int) -> Any:
            return self.dataset.filter(lambda row: row["label"] == partition_id).select([1, 0])

    assert lists(FlowerPartitioner(Halves())(np.array([1, 0, 0, 1]))) == [[2, 1], [3, 0]]
