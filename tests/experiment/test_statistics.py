"""Statistics, against numbers by hand, by enumeration of all signs, or of the literature."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.experiment.statistics import (
    average_ranks,
    holm,
    mean_relative_difference,
    most_representative_fold,
    pairs_needed,
    relative_difference,
    relative_difference_of_means,
    signed_rank_test,
    smallest_p,
    smooth,
    summarize,
)

# Table III of Xue et al. 2021: FedAvg, and per cent relative to it
FEDAVG = [82.88, 51.71, 87.61, 78.79, 93.87, 90.62, 97.29, 96.95, 92.21]
RADFED = [2.74, 4.04, 3.23, 5.01, 0.16, 2.27, 0.16, 0.24, 0.11]


def test_mean_sd_and_t_interval() -> None:
    # 1, 2, 3, 4: mean 2.5, variance 5/3; t_{0.975, 3} = 3.182446
    summary = summarize([1, 2, 3, 4])
    assert (summary.num, summary.mean) == (4, 2.5)
    assert summary.sd == pytest.approx(math.sqrt(5 / 3))
    half = 3.182446 * math.sqrt(5 / 3) / 2
    assert (summary.low, summary.high) == (pytest.approx(2.5 - half, abs=1e-6), pytest.approx(2.5 + half, abs=1e-6))
    # t_{0.95, 3} = 2.353363
    assert summarize([1, 2, 3, 4], 0.9).high == pytest.approx(2.5 + 2.353363 * math.sqrt(5 / 3) / 2, abs=1e-6)
    alone = summarize([0.7])
    assert (alone.num, alone.mean) == (1, 0.7)
    assert math.isnan(alone.sd)
    assert math.isnan(alone.low)


def test_both_averages_of_relative_differences() -> None:
    assert relative_difference(51, 50) == pytest.approx(0.02)
    scores = [a * (1 + r / 100) for a, r in zip(FEDAVG, RADFED, strict=True)]
    # the paper's AVG row has 1.79; the mean of the column is 17.96 / 9
    assert 100 * relative_difference_of_means(scores, FEDAVG) == pytest.approx(1.792, abs=5e-4)
    assert 100 * mean_relative_difference(scores, FEDAVG) == pytest.approx(17.96 / 9)
    # by hand: (10 + 30) / (10 + 20) - 1, and the mean of 0 and 1/2
    assert relative_difference_of_means([10, 30], [10, 20]) == pytest.approx(1 / 3)
    assert mean_relative_difference([10, 30], [10, 20]) == pytest.approx(1 / 4)
    # log-likelihoods: -1 is half as far from 0 as -2, and so more
    assert relative_difference(-1, -2) == pytest.approx(0.5)
    assert mean_relative_difference([-3, 3], [-2, 2]) == pytest.approx(0)


def enumerated(differences: list[float]) -> float:
    """P-value by going through all signs."""
    sizes = np.abs([d for d in differences if d])
    ranks = [((sizes < s).sum() + 1 + (sizes <= s).sum()) / 2 for s in sizes]
    total = sum(ranks)
    seen = sum(rank for rank, d in zip(ranks, [d for d in differences if d], strict=True) if d > 0)
    smaller = min(seen, total - seen)
    sums = [
        sum(r for r, sign in zip(ranks, signs, strict=True) if sign)
        for signs in itertools.product([0, 1], repeat=len(ranks))
    ]
    return min(1.0, 2 * sum(s <= smaller for s in sums) / len(sums))


def test_signed_rank_by_hand() -> None:
    # differences 1, 2, 3, -4: rank sums 6 and 4; 7 of the 16 sign patterns have a sum of 4 or less
    test = signed_rank_test([1, 2, 3, 0], [0, 0, 0, 4])
    assert (test.positive, test.negative) == (6, 4)
    assert test.p_value == pytest.approx(14 / 16)
    # differences 1, 1, -1, 2 have ranks 2, 2, 2, 4; sums of 2 or less: none, or one of three
    assert signed_rank_test([1, 1, 0, 2], [0, 0, 1, 0]).p_value == pytest.approx(2 * 4 / 16)


def test_the_pairs_needed_are_those_whose_smallest_p_value_is_below_the_level() -> None:
    test = signed_rank_test(np.arange(1, 16), np.zeros(15))
    assert smallest_p(15) == test.p_value == 6.103515625e-05
    assert (test.num_pairs, test.num_zeros) == (15, 0)
    assert smallest_p(1) == 1.0
    # 2^-5 = .031; two methods take 2 * 2^-6 = .031, and three 3 * 2^-6 = .047
    assert [pairs_needed(), pairs_needed(2), pairs_needed(3), pairs_needed(4)] == [6, 7, 7, 8]


def test_equal_pairs_are_left_out_and_counted() -> None:
    test = signed_rank_test([0.5, 0.3, 0.2, 0.9], [0.5, 0.2, 0.1, 0.8])
    # three differences of 0.1, equal but for rounding
    assert (test.num_pairs, test.num_zeros, test.positive, test.p_value) == (4, 1, 6, 0.25)
    same = signed_rank_test([1, 2], [1, 2])
    assert (same.p_value, same.num_pairs, same.num_zeros) == (1.0, 2, 2)


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9).filter(any))
def test_signed_rank_is_the_enumeration_of_all_signs(differences: list[int]) -> None:
    test = signed_rank_test(differences, [0] * len(differences))
    assert test.p_value == pytest.approx(enumerated([float(d) for d in differences]))


def test_holm() -> None:
    # 4 x 0.005, 3 x 0.01, then 2 x 0.03 and 1 x 0.04, which may not fall below
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert holm([0.7, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_average_ranks_and_friedman() -> None:
    # by hand: ranks (1, 2, 3), (1, 2, 3), (1, 3, 2); sums 3, 7, 8; 12 / (3 x 3 x 4) x 122 - 3 x 3 x 4
    ranks = average_ranks({"a": [9, 9, 9], "b": [8, 8, 7], "c": [7, 7, 8]})
    assert ranks.average == pytest.approx({"a": 1, "b": 7 / 3, "c": 8 / 3})
    assert ranks.statistic == pytest.approx(122 / 3 - 36)
    assert ranks.p_value == pytest.approx(math.exp(-(122 / 3 - 36) / 2))  # two degrees of freedom
    assert ranks.num_blocks == 3
    assert average_ranks({"a": [1, 1], "b": [1, 2]}, mode="min").average == pytest.approx({"a": 1.25, "b": 1.75})
    assert math.isnan(average_ranks({"a": [1, 1], "b": [1, 1], "c": [1, 1]}).p_value)
    # Of two methods there is no such test.
    two = average_ranks({"a": [2, 1], "b": [1, 2]})
    assert math.isnan(two.p_value) and two.num_blocks == 2
    assert average_ranks({"a": [0.1 + 0.2], "b": [0.3]}).average == {"a": 1.5, "b": 1.5}


def test_most_representative_fold() -> None:
    # gaps 1, 2 and 6 have the mean 3; the nearest is 2
    fold = most_representative_fold({0: [2, 2], 1: [3, 3], 4: [7, 7]}, {0: [1, 1], 1: [0, 2], 4: [1, 1]})
    assert fold == 1
    # gaps 1 and 3 are as near to their mean: the lowest number counts, in whatever order the folds come
    assert most_representative_fold({2: [1], 0: [3]}, {2: [0], 0: [0]}) == 0


def test_smoothing_takes_means_of_intervals() -> None:
    assert smooth([1, 3, 5, 7, 9], 2).tolist() == [2, 6, 9]
    assert smooth([1, math.nan, math.nan, math.nan], 2)[0] == 1
    assert math.isnan(smooth([1, math.nan, math.nan, math.nan], 2)[1])
    assert smooth([], 3).tolist() == []
