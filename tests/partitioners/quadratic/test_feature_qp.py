"""The QP partition over sizes, classes and categorical features."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from fl_lightning.data import ClientSplit, Split, WithinClientSplit
from fl_lightning.partitioners import FeatureQPPartitioner, Partition, c_score, label_counts

RNG = np.random.default_rng(0)
LABELS = RNG.integers(3, size=2000)
FEATURES = {"area": RNG.integers(4, size=2000), "soil": RNG.choice(["clay", "loam", "sand"], 2000, p=[0.7, 0.2, 0.1])}


def table_counts(partition: Partition) -> np.ndarray:
    """Samples of each client with each combination of class, area and soil, shape (clients, 36)."""
    code = LABELS * 12 + FEATURES["area"] * 3 + np.unique(FEATURES["soil"], return_inverse=True)[1]
    return np.stack([np.bincount(code[indices], minlength=36) for indices in partition.indices])


@pytest.mark.parametrize(("seed", "moves"), [(0, 0), (1, 3000)])
def test_sizes_and_configurations_are_met_exactly(seed: int, moves: int) -> None:
    partitioner = FeatureQPPartitioner(15, burn_in=moves, search=moves, seed=seed)
    solution = partitioner.solve(LABELS, FEATURES)
    partition = partitioner(LABELS, FEATURES)
    sizes = solution.target[:, :3].sum(axis=1)

    np.testing.assert_array_equal(table_counts(partition), solution.counts)
    np.testing.assert_allclose(partition.sizes, sizes, rtol=0, atol=1e-9)
    for matrix in (solution.optimal, solution.chosen):
        np.testing.assert_allclose(matrix.sum(axis=1), sizes, rtol=0, atol=1e-9)
        np.testing.assert_allclose(matrix.sum(axis=0), solution.counts.sum(axis=0), rtol=0, atol=1e-9)
        assert matrix.min() >= 0
    assert np.abs(solution.counts - solution.chosen).max() < 1
    assert sorted(np.concatenate(partition.indices)) == list(range(2000))


def test_losses_are_those_of_classes_and_features() -> None:
    solution = FeatureQPPartitioner(15, burn_in=3000, search=3000).solve(LABELS, FEATURES)
    classes, area, soil = solution.configurations.T
    sums = [
        solution.counts[:, codes == value].sum(axis=1)
        for codes, values in ((classes, 3), (area, 4), (soil, 3))
        for value in range(values)
    ]

    assert solution.counts_loss == pytest.approx(((np.stack(sums, axis=1) - solution.target) ** 2).sum())
    assert solution.bound * (1 - 1e-6) <= solution.optimal_loss <= solution.bound * (1 + 1e-6)
    assert solution.chosen_loss > solution.optimal_loss
    stopped = FeatureQPPartitioner(5, burn_in=10**9, search=0, step=0.05, burn_in_stop=1.1).solve(LABELS, FEATURES)
    # the last move is small
    assert 1.1**2 - 1e-9 <= stopped.chosen_loss / stopped.optimal_loss < 1.11**2


def test_concentrations_of_classes_and_features_are_independent() -> None:
    labels, feature = RNG.integers(4, size=(2, 40_000))

    def skews(class_alpha: float, feature_alpha: float) -> tuple[float, float]:
        partitioner = FeatureQPPartitioner(
            20, 1e6, class_alpha=class_alpha, feature_alpha=feature_alpha, burn_in=0, search=0
        )
        partition = partitioner(labels, feature)
        return c_score(label_counts(partition, labels)), c_score(label_counts(partition, feature))

    by_class, by_feature = skews(0.05, 1e6), skews(1e6, 0.05)
    assert by_class[0] > 1.0 > 0.1 > by_class[1]
    assert by_feature[1] > 1.0 > 0.1 > by_feature[0]


def test_features_may_be_an_array_or_named_and_their_numbers_do_not_matter() -> None:
    partitioner = FeatureQPPartitioner(10, burn_in=200, search=200)
    soil = np.unique(FEATURES["soil"], return_inverse=True)[1]
    expected = partitioner(LABELS, FEATURES)

    for features in (
        np.stack([FEATURES["area"], soil], axis=1),
        {"a": FEATURES["area"].astype(np.uint8) * 7, "s": FEATURES["soil"].astype(object)},
    ):
        assert partitioner(LABELS, features) == expected
    assert partitioner(LABELS, soil == 0) == partitioner(LABELS, (soil == 0)[:, None])


def test_floating_point_features_are_cut_into_buckets() -> None:
    height = RNG.normal(size=2000)
    solution = FeatureQPPartitioner(10, num_buckets=5, burn_in=0, search=0).solve(LABELS, height)
    quintile = np.searchsorted(np.sort(height)[400::400], height, side="right")

    assert solution.configurations.tolist() == [[label, bucket] for label in range(3) for bucket in range(5)]
    totals = [((label == LABELS) & (bucket == quintile)).sum() for label in range(3) for bucket in range(5)]
    assert solution.counts.sum(axis=0).tolist() == totals


@pytest.mark.parametrize("split", [ClientSplit(), WithinClientSplit()])
def test_a_split_takes_the_partitioner_with_its_features_bound(split: Split) -> None:
    partitioner = FeatureQPPartitioner(10, burn_in=0, search=0)
    made = split.apply(LABELS, functools.partial(partitioner, features=FEATURES))

    assert made.partition == partitioner(LABELS, FEATURES)


@pytest.mark.parametrize(("labels", "num_clients"), [(LABELS, 1), (np.zeros(2000, dtype=int), 3)])
def test_a_single_client_or_configuration_leaves_no_choice(labels: np.ndarray, num_clients: int) -> None:
    features = FEATURES if num_clients == 1 else np.ones(2000, dtype=int)
    partition = FeatureQPPartitioner(num_clients, burn_in=10, search=10)(labels, features)

    assert partition.sizes.sum() == 2000
    assert partition.sizes.min() > 0
