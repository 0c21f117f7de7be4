from __future__ import annotations

import numpy as np
import pytest

from fl_lightning.data import FederatedSplit, Split
from fl_lightning.datamodules import CropSplit, OrderedSplit
from fl_lightning.partitioners import Partition

SIZES = [420, 80, 10, 150, 920, 1]
TOTAL = sum(SIZES)


def clients(labels: np.ndarray) -> Partition:
    """The client of each size in turn takes the next samples."""
    assert len(labels) == TOTAL
    return Partition(tuple(np.split(np.arange(TOTAL), np.cumsum(SIZES)[:-1])))


def apply(split: Split, test_indices: np.ndarray | None = None) -> FederatedSplit:
    return split.apply(TOTAL, clients, test_indices)


def sizes(parts: dict[int, np.ndarray]) -> dict[int, int]:
    return {client: len(indices) for client, indices in parts.items()}


def test_the_default_is_leafs_split():
    split = apply(OrderedSplit())
    # 0.8 of 420 train, 420 - 336 - 79 test; 0.8 of 920 train, 920 - 736 - 79 test; 150 - 120 is less than the gap
    assert sizes(split.train) == {0: 336, 1: 736}
    assert sizes(split.test) == {0: 5, 1: 105}
    assert split.val == {}
    assert split.train[1].tolist() == list(range(660, 660 + 736))
    assert split.test[0].tolist() == list(range(415, 420))
    assert split.partition.indices[0].tolist() == [*range(336), *range(415, 420)]


def test_validation_lies_between_training_and_test():
    split = apply(OrderedSplit(val=0.2, test=0.3, gap=10))
    # of 420 samples 210 train, 294 - 220 validate and 420 - 304 test; of 80: 40, 56 - 50 and 80 - 66
    assert sizes(split.train) == {0: 210, 1: 40, 2: 75, 3: 460}
    assert sizes(split.val) == {0: 74, 1: 6, 2: 20, 3: 174}
    assert sizes(split.test) == {0: 116, 1: 14, 2: 35, 3: 266}
    for client, train in split.train.items():
        assert split.val[client][0] - train[-1] == 11
        assert split.test[client][0] - split.val[client][-1] == 11


WINDOW = 80  # characters of an input; sample i is the characters i to i + 79, its label the character i + 80


def characters(samples: np.ndarray, *, with_label: bool) -> set[int]:
    return {start + step for start in samples.tolist() for step in range(WINDOW + with_label)}


def test_the_gap_separates_training_from_test_text():
    for gap, inputs_shared, shared in [(78, 1, 2), (79, 0, 1), (80, 0, 0)]:
        split = apply(OrderedSplit(gap=gap))
        for client, train in split.train.items():
            test = characters(split.test[client], with_label=True)
            assert len(characters(train, with_label=False) & test) == inputs_shared
            assert len(characters(train, with_label=True) & test) == shared


def test_without_test_set_all_samples_train():
    split = apply(OrderedSplit(test=0.0))
    assert list(sizes(split.train).values()) == SIZES
    assert split.val == split.test == {}


def test_the_files_own_test_part():
    test_indices = np.array([400, 410, 425, 1000])
    split = apply(OrderedSplit(val=0.5, test="official", gap=10), test_indices)
    # 420 - 2 samples are left, of which 209 train and 219 to 417 validate; of 80 - 1, 39 train
    assert sizes(split.train) == {0: 209, 1: 39, 2: 459}
    assert sizes(split.val) == {0: 199, 1: 30, 2: 450}
    assert [indices.tolist() for indices in split.test.values()] == [[400, 410], [425], [1000]]


def test_equal_clients():
    drawn = [apply(CropSplit(num_clients=1, train=300, test=4, seed=seed)) for seed in range(5)]
    assert {split.train[0][0] < SIZES[0] for split in drawn} == {True, False}
    assert all(sizes(split.test) == {0: 4} for split in drawn)
    for seed in range(5):
        split = apply(CropSplit(num_clients=2, train=300, test=4, seed=seed))
        assert sizes(split.train) == {0: 300, 1: 300}
        assert sizes(split.test) == {0: 4, 1: 4}
        whole = apply(OrderedSplit())
        for stage in ("train", "test"):
            for indices in getattr(split, stage).values():
                assert np.diff(indices).tolist() == [1] * (len(indices) - 1)
                assert any(np.isin(indices, own).all() for own in getattr(whole, stage).values())


def test_validation_samples_of_equal_clients_stay_as_they_were_cut():
    base = OrderedSplit(val=0.2, test=0.3, gap=10)
    split = apply(CropSplit(num_clients=2, train=100, test=50, base=base))
    whole = [indices.tolist() for indices in apply(base).val.values()]
    assert [indices.tolist() in whole for indices in split.val.values()] == [True, True]


def test_every_start_of_a_stretch_is_equally_likely():
    # a client of 12 training samples and 3 + 1 test samples: 3 starts of 10 samples, 2 starts of 3
    def natural(labels):
        return Partition((np.arange(16),))

    starts = []
    for seed in range(600):
        split = CropSplit(1, 10, 3, OrderedSplit(test=0.25, gap=0), seed).apply(16, natural)
        starts.append((split.train[0][0], split.test[0][0]))
    counts = {start: starts.count(start) for start in sorted(set(starts))}
    assert set(counts) == {(train, test) for train in (0, 1, 2) for test in (12, 13)}
    # 100 expected of each, standard deviation sqrt(600 * 1/6 * 5/6) = 9.1
    assert all(abs(count - 100) < 4 * 9.2 for count in counts.values())


def test_a_client_needs_more_samples_than_a_stretch():
    # 5 test samples and 336 training samples are the most that two clients have
    assert len(apply(CropSplit(num_clients=2, train=335, test=4)).train) == 2
    for train, test in ((336, 4), (335, 5)):
        with pytest.raises(ValueError, match=rf"`train` = {train} .* `test` = {test} .* only 1\."):
            apply(CropSplit(num_clients=2, train=train, test=test))
