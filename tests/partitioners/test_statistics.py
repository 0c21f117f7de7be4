from __future__ import annotations

import math

import numpy as np
import pytest

from fl_lightning.partitioners import Partition, c_score, label_counts, label_entropy, partition_statistics


# oracle O14
def test_c_score() -> None:
    for counts, expected in [
        ([[2, 4, 6], [1, 2, 3], [10, 20, 30]], 0.0),
        (np.eye(10, dtype=int) * 7, 1.8),
        ([[3, 1], [1, 3]], 0.5),
        ([[8, 0], [0, 2]], 1.0),
        ([[5], [3]], 0.0),
    ]:
        assert c_score(np.array(counts)) == pytest.approx(expected, abs=1e-12)


# oracle O15, first line
def test_label_entropy() -> None:
    for counts, expected in [
        (np.ones((2, 2)), 1.386294361),
        (np.eye(2), 0.693147181),
        (np.ones((1984, 12)), 10.077776938),
        ([[4, 0]], 0.0),
    ]:
        assert label_entropy(np.array(counts)) == pytest.approx(expected, abs=1e-9)


def test_labels_are_counted_by_client_and_class() -> None:
    # class 5 belongs to a sample that no client has
    partition = Partition(([0, 1, 2, 3], [4, 7, 6, 5]))
    assert label_counts(partition, np.array([1, 1, 9, 1, 9, 9, 1, 9, 5])).tolist() == [[3, 0, 1], [1, 0, 3]]


def test_statistics_of_a_partition() -> None:
    partition = Partition((np.array([0, 1, 3]), np.array([2]), np.array([4, 5])))
    statistics = partition_statistics(partition, np.array([0, 0, 1, 0, 1, 1]))

    # cells of 3, 1 and 2 of 6 samples
    entropy = math.log(6) - (3 * math.log(3) + 2 * math.log(2)) / 6
    assert [*statistics.as_dict().values()] == pytest.approx([3, 6, 1, 3, 2.0, math.sqrt(2 / 3), 1.0, entropy])
