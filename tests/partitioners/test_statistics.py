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


PARTITION = Partition((np.array([0, 1, 2, 3]), np.array([4, 7, 6, 5])))
LABELS = np.array([1, 1, 9, 1, 9, 9, 1, 9, 5])


def test_labels_are_counted_by_client_and_class() -> None:
    # class 5 belongs to a sample that no client has
    assert label_counts(PARTITION, LABELS).tolist() == [[3, 0, 1], [1, 0, 3]]


def test_statistics_of_a_partition() -> None:
    partition = Partition((np.array([0, 1, 3]), np.array([2]), np.array([4, 5])))
    statistics = partition_statistics(partition, np.array([0, 0, 1, 0, 1, 1]))

    assert statistics.as_dict() == {
        "num_clients": 3,
        "num_samples": 6,
        "min": 1,
        "max": 3,
        "mean": 2.0,
        "std": pytest.approx(math.sqrt(2 / 3)),
        "c_score": pytest.approx(1.0),
        # cells of 3, 1 and 2 of 6 samples
        "entropy": pytest.approx(math.log(6) - (3 * math.log(3) + 2 * math.log(2)) / 6),
    }


def test_invalid_counts_are_refused() -> None:
    for counts, shown in ((np.array([1, 2]), r"2,"), (np.array([[1, -2]]), "1, 2"), (np.zeros((2, 2)), "2, 2")):
        for measure in (c_score, label_entropy):
            with pytest.raises(ValueError, match=rf"`counts` .* of shape \({shown}\)"):
                measure(counts)


def test_a_partition_of_another_data_set_is_refused() -> None:
    with pytest.raises(IndexError):
        partition_statistics(PARTITION, LABELS[:7])
