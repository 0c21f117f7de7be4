"""Shards, fixed numbers of classes, class-wise Dirichlet, quantity skew, fast and slow devices."""

from __future__ import annotations

import numpy as np

from fl_lightning.partitioners import (
    ClasswiseDirichletPartitioner,
    DirichletPartitioner,
    IIDPartitioner,
    LimitedClassesPartitioner,
    PathologicalPartitioner,
    PowerLawPartitioner,
    QuantitySkewPartitioner,
    ShardPartitioner,
    c_score,
    device_experiment_partitioner,
    label_counts,
)

LABELS = np.random.default_rng(0).permutation(np.arange(6000) % 10)


def test_shards_are_contiguous_pieces_of_the_sorted_samples() -> None:
    labels = np.array([1, 0, 1, 0, 1, 0, 1, 0])
    indices = ShardPartitioner(2, num_shards_per_partition=2)(labels).indices
    shards = sorted(shard.tolist() for client in indices for shard in client.reshape(2, 2))

    assert shards == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_pathological_classes_follow_the_mode() -> None:
    labels = np.arange(40) % 4
    deterministic = label_counts(PathologicalPartitioner(4, 2, "deterministic")(labels), labels)
    first = label_counts(PathologicalPartitioner(8, 2)(labels), labels)

    # client i has classes i and i + 1, of which another client has the other half
    assert deterministic.tolist() == [[5, 5, 0, 0], [0, 5, 5, 0], [0, 0, 5, 5], [5, 0, 0, 5]]
    assert all(first[client, client % 4] > 0 for client in range(8))
    for mode in ["first-deterministic", "random", "deterministic"]:
        present = label_counts(PathologicalPartitioner(20, 3, mode)(LABELS), LABELS) > 0
        assert present.sum(axis=1).tolist() == [3] * 20


def test_a_pathological_class_is_shared_equally_and_all_are_used() -> None:
    counts = label_counts(PathologicalPartitioner(30, 2)(LABELS), LABELS)

    for column in counts.T:
        shares = column[column > 0]
        assert shares.max() - shares.min() <= 1
    assert counts.sum(axis=0).tolist() == [600] * 10


def test_sizes_of_a_power_law_follow_the_lognormal_draws() -> None:
    labels = np.arange(4000) % 4
    counts = label_counts(PowerLawPartitioner(8, 2, least_per_class=5, sigma=0.0)(labels), labels)
    # Four clients hold a class: 5 of it each, and a quarter of the other 980.
    assert counts[:4].tolist() == [[250, 250, 0, 0], [0, 250, 250, 0], [0, 0, 250, 250], [250, 0, 0, 250]]
    assert counts[4:].tolist() == counts[:4].tolist()
    skewed = label_counts(PowerLawPartitioner(400, 1, least_per_class=2, seed=1)(labels), labels).sum(axis=1)
    # A class has 1,000 samples and 100 holders. Rounding leaves less than one sample of each, and the rest of 800
    # follows numbers whose logarithm has the standard deviation 2: the median is far below the mean of 10.
    assert skewed.min() == 2
    assert 3600 < skewed.sum() <= 4000
    assert np.median(skewed) <= 4
    assert skewed.max() > 100


def test_a_class_wise_draw_uses_all_samples_and_keeps_the_minimum() -> None:
    sizes = ClasswiseDirichletPartitioner(20, alpha=0.3, min_partition_size=25)(LABELS).sizes

    assert sizes.sum() == len(LABELS)
    assert sizes.min() >= 25


def test_a_balanced_client_gets_nothing_more() -> None:
    # with alpha near 0 one client takes a class whole; with balancing nobody takes a second one
    labels = np.repeat(np.arange(4), 50)
    balanced = label_counts(ClasswiseDirichletPartitioner(4, alpha=1e-3)(labels), labels)
    free = [
        label_counts(ClasswiseDirichletPartitioner(2, 1e-3, self_balancing=False, seed=seed)(labels), labels)
        for seed in range(10)
    ]

    assert sorted(balanced.max(axis=1).tolist()) == [50] * 4
    assert max(counts.sum(axis=1).max() for counts in free) == 150


def test_quantity_skew_changes_sizes_and_not_classes() -> None:
    labels = np.arange(60_000) % 10
    partition = QuantitySkewPartitioner(10, alpha=1.0, min_partition_size=500)(labels)

    assert partition.sizes.sum() == len(labels)
    assert partition.sizes.min() >= 500
    assert partition.sizes.max() > 3 * partition.sizes.min()
    assert c_score(label_counts(partition, labels)) < 0.1
    assert QuantitySkewPartitioner(10, alpha=1e9)(labels).sizes.std() < 2


def test_three_classes_for_slow_devices() -> None:
    labels = np.random.default_rng(1).permutation(np.arange(60_000) % 10)
    counts = label_counts(device_experiment_partitioner("1.2")(labels), labels)

    assert (counts[:5] == 600).all()
    # oracle O13g; classes {0,1,2}, {3,4,5}, {6,7,8}, {9,0,1}, {2,3,4}
    assert counts[5:].sum(axis=1).tolist() == [4500, 6000, 9000, 6000, 4500]
    assert counts[5:].tolist() == [
        [1500, 1500, 1500, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 1500, 1500, 3000, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 3000, 3000, 3000, 0],
        [1500, 1500, 0, 0, 0, 0, 0, 0, 0, 3000],
        [0, 0, 1500, 1500, 1500, 0, 0, 0, 0, 0],
    ]
    assert counts.sum(axis=0).tolist() == [6000] * 10


def test_four_to_five_classes_each_and_nobody_all() -> None:
    labels = np.arange(60_000) % 10
    present = [label_counts(device_experiment_partitioner("1.4", seed)(labels), labels) > 0 for seed in range(5)]

    assert 4 <= np.mean([counts.sum(axis=1).mean() for counts in present]) <= 5
    assert max(counts.sum(axis=1).max() for counts in present) <= 9


def test_experiments_with_devices_have_the_seed_that_is_given() -> None:
    for experiment, same in [
        ("1.1", IIDPartitioner(10, seed=3)),
        ("1.3", LimitedClassesPartitioner(10, range(5), seed=3)),
        ("1.4", DirichletPartitioner(10, 0.02, max_classes_per_partition=9, seed=3)),
    ]:
        assert device_experiment_partitioner(experiment, seed=3)(LABELS) == same(LABELS)


def test_a_class_that_no_limited_client_holds_goes_to_the_others() -> None:
    labels = np.repeat([0, 1, 2], [10, 9, 8])
    partition = LimitedClassesPartitioner(3, np.array([1]), num_classes_per_partition=1)(labels)

    # floor(n / 3) each, then the rest of class 0 to client 1, of classes 1 and 2 to clients 0 and 2
    assert label_counts(partition, labels).tolist() == [[3, 5, 4], [4, 0, 0], [3, 4, 4]]
