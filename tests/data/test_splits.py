from __future__ import annotations

from functools import partial

import numpy as np

from fl_lightning.data import ClientSplit, FederatedSplit, SampleSplit, WithinClientSplit
from fl_lightning.partitioners import DirichletPartitioner, IIDPartitioner, Partition

LABELS = np.arange(1000) % 10


def all_samples(split: FederatedSplit) -> list[int]:
    parts = [*split.of("train").values(), *split.of("val").values(), *split.of("test").values()]
    return sorted(np.concatenate(parts).tolist())


def begins(split: FederatedSplit) -> list[str]:
    """Return the first digits of the fingerprint of each set."""
    sets = [Partition(tuple(part.values())) for part in (split.train, split.val, split.test)]
    return [each.fingerprint()[:6] for each in sets]


def test_a_split_is_a_function_of_labels_and_seed() -> None:
    # the same from version to version
    for kind, expected in [
        (ClientSplit, ["036e80", "2097d2", "b1ec2b"]),
        (SampleSplit, ["904656", "c2bf62", "62343c"]),
        (partial(SampleSplit, stratify=True), ["4eb271", "f10a6d", "0880cd"]),
        (WithinClientSplit, ["417c98", "7d4494", "db008f"]),
    ]:
        split = kind(seed=1).apply(LABELS, DirichletPartitioner(20, alpha=1.0))
        assert begins(split) == expected
        assert all_samples(split) == list(range(1000))


# oracle O13h: clients for training, validation and testing, fold by fold
def test_folds_of_clients() -> None:
    for num_clients, folds in [
        (100, [(60, 20, 20)] * 5),
        (143, [(85, 29, 29)] * 3 + [(86, 29, 28)] * 2),
        (164, [(98, 33, 33)] * 4 + [(99, 33, 32)]),
    ]:
        tested: list[int] = []
        for fold, sizes in enumerate(folds):
            split = ClientSplit(fold=fold, seed=3).apply(400, IIDPartitioner(num_clients))
            assert (len(split.train), len(split.val), len(split.test)) == sizes
            assert sorted([*split.train, *split.val, *split.test]) == list(range(num_clients))
            tested += split.test

        assert sorted(tested) == list(range(num_clients))


def test_an_official_test_part_is_pooled_unless_asked_for() -> None:
    for split in [ClientSplit(), WithinClientSplit(), SampleSplit()]:
        pooled, plain = (split.apply(LABELS, IIDPartitioner(10), *given) for given in ([np.arange(50)], []))
        assert begins(pooled) == begins(plain)


def test_global_sets_are_set_aside_before_the_partition() -> None:
    seen: list[np.ndarray] = []

    def partitioner(labels: np.ndarray) -> Partition:
        seen.append(labels)
        return IIDPartitioner(7)(labels)

    split = SampleSplit(val=0.1, test=0.25).apply(LABELS, partitioner)

    assert list(split.train) == list(range(7))
    assert list(split.val) == list(split.test) == [-1]
    assert (len(split.val[-1]), len(split.test[-1])) == (100, 250)
    rest = np.sort(np.concatenate(split.partition.indices))
    assert len(rest) == 650
    np.testing.assert_array_equal(seen[0], LABELS[rest])
    assert all(np.array_equal(split.train[client], split.partition.indices[client]) for client in range(7))


def test_the_official_test_part_is_the_global_test_set() -> None:
    test_indices = np.arange(999, 799, -1)
    split = SampleSplit(val=0.1, test="official").apply(LABELS, IIDPartitioner(8), test_indices)

    assert split.test[-1].tolist() == list(range(800, 1000))
    assert len(split.val[-1]) == 80
    assert split.partition.sizes.tolist() == [90] * 8
    assert all_samples(split) == list(range(1000))


def shares(labels: np.ndarray, split: FederatedSplit) -> list[list[int]]:
    num_classes = labels.max() + 1
    sets = [np.concatenate([[], *part.values()]).astype(int) for part in (split.train, split.val, split.test)]
    return [np.bincount(labels[indices], minlength=num_classes).tolist() for indices in sets]


def test_a_stratified_split_draws_every_class_in_proportion() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [500, 300, 190, 10]))
    split = SampleSplit(val=0.1, test=0.3, stratify=True, seed=42).apply(labels, IIDPartitioner(5))

    assert shares(labels, split) == [[300, 180, 114, 6], [50, 30, 19, 1], [150, 90, 57, 3]]
    assert all_samples(split) == list(range(1000))


def test_a_stratified_split_rounds_by_the_largest_remainder() -> None:
    # 3 of 10: the classes' dues are 1.5, 0.9 and 0.6; one sample each
    labels = np.array([0, 0, 0, 0, 0, 1, 1, 1, 2, 2])
    split = SampleSplit(val=0, test=0.3, stratify=True).apply(labels, IIDPartitioner(2))

    assert sorted(labels[split.test[-1]].tolist()) == [0, 1, 2]


def test_validation_is_stratified_beside_an_official_test_part() -> None:
    labels = np.array([0] * 60 + [1] * 40)
    split = SampleSplit(val=0.5, test="official", stratify=True).apply(labels, IIDPartitioner(2), np.arange(20))

    assert shares(labels, split) == [[20, 20], [20, 20], [20, 0]]


def test_each_client_splits_its_own_samples() -> None:
    split = WithinClientSplit(val=0.2, test=0.3).apply(LABELS, IIDPartitioner(10))

    for client, indices in enumerate(split.partition.indices):
        parts = split.train[client], split.val[client], split.test[client]
        assert [len(part) for part in parts] == [50, 20, 30]
        assert sorted(np.concatenate(parts)) == sorted(indices)


def test_small_clients_train_and_do_not_evaluate() -> None:
    def partitioner(labels: np.ndarray) -> Partition:
        return Partition((np.array([0]), np.array([1, 2]), np.arange(3, 13)))

    split = WithinClientSplit(val=0.3, test=0.6).apply(13, partitioner)

    assert {client: len(indices) for client, indices in split.train.items()} == {0: 1, 1: 1, 2: 1}
    assert {client: len(indices) for client, indices in split.val.items()} == {2: 3}
    assert {client: len(indices) for client, indices in split.test.items()} == {1: 1, 2: 6}


def test_every_other_fold_validates_in_turn() -> None:
    partitioner = IIDPartitioner(12)
    splits = [ClientSplit(fold=1, seed=3, val_fold=fold).apply(24, partitioner) for fold in (0, 2, 3, 4)]
    test = set(splits[0].test)
    assert all(set(split.test) == test for split in splits)
    # 12 clients make folds of 3, 3, 2, 2 and 2
    assert [len(split.val) for split in splits] == [3, 2, 2, 2]
    assert set().union(*(split.val for split in splits)) | test == set(range(12))
    assert all(set(split.train) == set(range(12)) - test - set(split.val) for split in splits)
    # without a fold of its own, as many as fold 0 has
    assert set(ClientSplit(fold=1, seed=3).apply(24, partitioner).val) == set(splits[0].val)
    assert set(ClientSplit(fold=0, seed=3, val_fold=1).apply(24, partitioner).val) == test
