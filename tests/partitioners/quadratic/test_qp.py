from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fl_lightning.partitioners import QPPartitioner, c_score, label_counts


@pytest.mark.parametrize("rounding", ["margins", "columns"])
def test_samples_are_taken_in_order_as_the_solution_says(rounding: Any) -> None:
    labels = np.repeat([5, 2, 7], [40, 60, 20])[np.random.default_rng(0).permutation(120)]
    partitioner = QPPartitioner(6, class_alpha=0.5, burn_in=100, search=100, rounding=rounding, seed=2)
    partition = partitioner(labels)

    np.testing.assert_array_equal(label_counts(partition, labels), partitioner.solve(np.array([60, 40, 20])).counts)
    for label in (2, 5, 7):
        taken = np.concatenate([np.sort(indices[labels[indices] == label]) for indices in partition.indices])
        assert taken.tolist() == np.flatnonzero(labels == label).tolist()


def test_concentrations_of_sizes_and_classes_are_independent() -> None:
    def solve(size_alpha: float, class_alpha: float) -> tuple[float, float]:
        solution = QPPartitioner(50, size_alpha, class_alpha, burn_in=0, search=0).solve(np.full(10, 600_000))
        sizes = solution.counts.sum(axis=1)
        return float(sizes.std() / sizes.mean()), c_score(solution.counts)

    # equal sizes with one class each, and unequal ones with the same mix
    spread, score = solve(1e6, 0.01)
    assert spread < 0.01
    assert score > 1.2
    spread, score = solve(1.0, 1e6)
    # eq. (55): sqrt(49 / 51), of a single draw
    assert spread == pytest.approx(math.sqrt(49 / 51), abs=0.35)
    assert score < 0.01


def test_a_burn_in_can_stop_at_a_multiple_of_the_optimum() -> None:
    stopped = QPPartitioner(20, burn_in=10**9, search=0, step=0.05, burn_in_stop=1.1).solve(np.full(10, 300))
    ratio = math.sqrt(stopped.chosen_loss / stopped.optimal_loss)

    # the last move is small
    assert 1.1 - 1e-9 <= ratio < 1.11


def test_a_target_that_is_met_leaves_nothing_to_stop_at() -> None:
    solution = QPPartitioner(5, burn_in=100, search=100, burn_in_stop=1.1).solve(np.array([50]))

    assert solution.optimal_loss == pytest.approx(0)
    np.testing.assert_array_equal(solution.counts, solution.target)


def test_many_clients_of_few_samples() -> None:
    # a dense system of as many equations as clients would take a minute
    labels = np.random.default_rng(0).integers(0, 4, 12_000)
    partition = QPPartitioner(3_000, size_alpha=100.0, class_alpha=0.1, burn_in=0, search=0)(labels)
    assert sorted(np.concatenate(partition.indices).tolist()) == list(range(12_000))
    assert partition.sizes.min() >= 1
    # sizes are rounded, and have one sample too many then, which is not taken of a client with a single one
    for seed in (5, 6, 8):
        solution = QPPartitioner(4, size_alpha=1.0, burn_in=0, search=0, seed=seed).solve(np.array([6]))
        assert (solution.counts.sum(), solution.counts.min()) == (6, 1)
