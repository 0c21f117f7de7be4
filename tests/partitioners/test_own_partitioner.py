"""A user's own partitioner: one public method, whose result is checked."""

from __future__ import annotations

import numpy as np
import torch

from fl_lightning import partitioners
from fl_lightning.data import WithinClientSplit
from fl_lightning.partitioners import Partition, Partitioner

LABELS = np.array([5, 5, 9, 9, 9, 5])


class RoundRobin(Partitioner):
    def assign(self, classes):
        return [range(client, len(classes), self.num_clients) for client in range(self.num_clients)]


def test_one_method_makes_a_partitioner() -> None:
    assert [indices.tolist() for indices in RoundRobin(2)(LABELS).indices] == [[0, 2, 4], [1, 3, 5]]
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


def test_indices_may_be_lists_arrays_or_tensors() -> None:
    for result in [
        [[0, 1], [2]],
        ((0, 1), (2,)),
        [np.array([0, 1], dtype=np.int32), np.array([2], dtype=np.uint8)],
        [torch.tensor([0, 1]), torch.tensor([2])],
        (part for part in ([0, 1], [2])),
        Partition((np.array([0, 1]), np.array([2]))).indices,
    ]:
        made = WithinClientSplit(0.0, 0.0).apply(LABELS, lambda labels, result=result: result)
        assert [indices.tolist() for indices in made.partition.indices] == [[0, 1], [2]]


def test_the_fewest_samples_and_the_most_classes_that_are_asked_for_are_enough() -> None:
    for made in [
        partitioners.DirichletPartitioner(3, 1.0, size_sigma=0.1),
        partitioners.DirichletPartitioner(3, 100.0, max_classes_per_partition=1),
        partitioners.QPPartitioner(3, 1e6, burn_in=0, search=0),
        partitioners.QuantitySkewPartitioner(3, 1e9, min_partition_size=1),
        partitioners.ClasswiseDirichletPartitioner(3, 1e9, min_partition_size=1),
        partitioners.PathologicalPartitioner(3, 1),
        partitioners.PowerLawPartitioner(3, 1, least_per_class=1),
        partitioners.ShardPartitioner(3, 1, shard_size=1),
        partitioners.IIDPartitioner(3),
    ]:
        assert made(np.array([0, 0, 0])).sizes.tolist() == [1, 1, 1]
