"""Properties of every partitioner; a new one is a line in ``MAKERS``."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fl_lightning import partitioners as kinds
from fl_lightning.partitioners import Partitioner

LABELS = np.arange(200) % 4
#: What makes it with a seed, for seven clients, and the first digits of its partition's fingerprint for seed 0.
MAKERS: dict[str, tuple[Callable[[int], Partitioner], str]] = {
    "iid": (lambda seed: kinds.IIDPartitioner(7, seed=seed), "eef29153"),
    "dirichlet": (lambda seed: kinds.DirichletPartitioner(7, 0.3, seed=seed), "ec3f3437"),
    "dirichlet-sizes": (lambda seed: kinds.DirichletPartitioner(7, 0.3, size_sigma=0.3, seed=seed), "0f49ddd4"),
    "qp": (lambda seed: kinds.QPPartitioner(7, class_alpha=0.5, burn_in=500, search=500, seed=seed), "d1d13ed3"),
    "classwise": (lambda seed: kinds.ClasswiseDirichletPartitioner(7, 0.3, seed=seed), "fa541383"),
    "quantity": (lambda seed: kinds.QuantitySkewPartitioner(7, 0.5, min_partition_size=2, seed=seed), "fd6cf10f"),
    "shards": (lambda seed: kinds.ShardPartitioner(7, seed=seed), "84780d9f"),
    "shards-of-9": (lambda seed: kinds.ShardPartitioner(7, shard_size=9, seed=seed), "ea7808cf"),
    "pathological": (lambda seed: kinds.PathologicalPartitioner(7, 2, seed=seed), "8dff2d90"),
    "pathological-random": (lambda seed: kinds.PathologicalPartitioner(7, 2, "random", seed=seed), "5e418d83"),
    "power-law": (lambda seed: kinds.PowerLawPartitioner(7, 2, seed=seed), "9051d03b"),
    "limited": (lambda seed: kinds.LimitedClassesPartitioner(7, [0, 5], 2, seed=seed), "51a19b2e"),
}


@pytest.mark.parametrize("name", MAKERS)
def test_partitioner(name: str) -> None:
    make, fingerprint = MAKERS[name]
    partitioner, other = make(0), make(4)
    np.random.seed(5)
    state = np.random.get_state()[1].tolist()  # type: ignore[index]
    partition = partitioner(LABELS)
    # a function of labels and seed alone
    assert partition == partitioner(LABELS) == make(0)(LABELS) != other(LABELS)
    assert np.random.get_state()[1].tolist() == state  # type: ignore[index]
    assert partition.fingerprint().startswith(fingerprint)
    # each client gets samples that exist, none twice
    used = np.concatenate(partition.indices)
    assert (partition.num_clients, len(np.unique(used))) == (7, partition.sizes.sum())
    assert partition.sizes.min() >= 1
    assert set(used) <= set(range(200))
    # whatever the form and the numbers of the classes
    for labels in (LABELS.tolist(), torch.from_numpy(LABELS), LABELS * 10 - 7, LABELS.astype(np.uint8)):
        assert partitioner(labels) == partition
    again = pickle.loads(pickle.dumps(partitioner))
    assert again(LABELS) == partition
    assert repr(again) == repr(partitioner)
    assert repr(partitioner).startswith(f"{type(partitioner).__name__}(num_clients=7, ")
    for wrong in (np.zeros((20, 1), dtype=int), np.zeros(20), np.array([np.nan]), ["a"], [None], None, []):
        with pytest.raises((TypeError, ValueError), match="`labels`"):
            partitioner(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`num_clients` is 7"):
        partitioner(np.zeros(6, dtype=int))


def test_every_partitioner_is_here() -> None:
    exported = {getattr(kinds, name) for name in kinds.__all__}
    classes = {cls for cls in exported if inspect.isclass(cls) and issubclass(cls, Partitioner)}
    made = {type(make(0)) for make, _ in MAKERS.values()}
    # these see keys, indices, features or topics in place of labels
    others = {"ExplicitPartitioner", "FeatureQPPartitioner", "NaturalPartitioner", "TopicGraphPartitioner"}
    assert {cls.__name__ for cls in classes - made if not inspect.isabstract(cls)} <= others
