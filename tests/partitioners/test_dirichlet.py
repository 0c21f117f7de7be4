from __future__ import annotations

import math

import numpy as np
import pytest

from fl_lightning.partitioners import DirichletPartitioner, label_counts
from fl_lightning.partitioners.dirichlet import sizes_from_draws


def test_lognormal_draws_are_scaled_and_truncated_and_the_first_client_gets_the_rest() -> None:
    # oracle O13f: (3.7, 2.2, 4.1) of 10 truncates to (3, 2, 4)
    assert sizes_from_draws(np.array([3.7, 2.2, 4.1]), 10).tolist() == [4, 2, 4]


def test_lognormal_sizes_use_all_samples_and_spread_as_asked() -> None:
    partition = DirichletPartitioner(200, alpha=1.0, size_sigma=0.3)(np.arange(100_000) % 10)

    assert sorted(np.concatenate(partition.indices)) == list(range(100_000))
    # the first client's remainder, up to 200, is left out
    assert np.log(partition.sizes[1:]).std() == pytest.approx(0.3, abs=0.05)


def test_a_class_is_taken_in_the_order_of_the_data_set() -> None:
    labels = np.arange(302) % 3
    partition = DirichletPartitioner(4, alpha=0.5)(labels)

    assert partition.sizes.tolist() == [75] * 4  # the remainder is left out
    for indices in partition.indices:
        for label in range(3):
            assert (np.diff(indices[labels[indices] == label]) > 0).all()


def test_clients_and_classes_are_drawn_as_the_sequential_rule_says() -> None:
    for alpha, expected in [
        # Both priors are one class, the same one in half of the cases. Then clients hold one class each unless they
        # alternate in the first two picks: 1/2 * 1/2.
        (1e-4, 1 / 4),
        # Classes and clients are both fair draws until used up. The positions {1,2|3,4}, {1,3|2,4}, {1,4|2,3} are
        # paired with probabilities 1/2, 1/4, 1/4; clients hold one class each if both pair alike.
        (1e7, 1 - (1 / 4 + 1 / 16 + 1 / 16)),
    ]:
        labels = np.array([0, 0, 1, 1])
        mixed = [
            len(set(labels[DirichletPartitioner(2, alpha=alpha, seed=seed)(labels).indices[0]])) == 2
            for seed in range(500)
        ]

        # four standard errors
        assert np.mean(mixed) == pytest.approx(expected, abs=4 * math.sqrt(0.25 / 500))


@pytest.mark.parametrize("num_classes", [1, 40])
def test_extreme_priors_still_fill_every_client(num_classes: int) -> None:
    partition = DirichletPartitioner(20, alpha=1e-6)(np.arange(400) % num_classes)

    assert partition.sizes.tolist() == [20] * 20


def test_draws_are_repeated_until_no_client_has_too_many_classes() -> None:
    labels = np.arange(1000) % 10
    free, limited = (DirichletPartitioner(10, 0.1, max_classes_per_partition=most)(labels) for most in (None, 6))

    assert (label_counts(free, labels) > 0).sum(axis=1).max() > 6
    assert (label_counts(limited, labels) > 0).sum(axis=1).max() <= 6
    assert limited.sizes.tolist() == [100] * 10
