"""Statistics of scores: intervals, relative differences, paired tests, ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Numbers = Sequence[float] | np.ndarray
LEVEL = 0.05
"""The level below which a p-value is significant."""


@dataclass(frozen=True)
class Summary:
    """Mean and spread of independent scores.

    Attributes:
        num: Number of scores.
        mean: Their mean.
        sd: Their sample standard deviation (with the divisor n - 1); NaN for one score.
        low: Lower end of the t confidence interval of the mean; NaN for one score.
        high: Upper end.
    """

    num: int
    mean: float
    sd: float
    low: float
    high: float


def summarize(scores: Numbers, confidence: float = 0.95) -> Summary:
    """Return mean, standard deviation and Student's t confidence interval of the mean.

    Args:
        scores: Shape ``(n,)``, at least one, finite.
        confidence: Confidence level of the interval, between 0 and 1.
    """
    from scipy import stats

    values = np.asarray(scores, dtype=float)
    if len(values) == 1:
        return Summary(1, float(values[0]), math.nan, math.nan, math.nan)
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(confidence)
    return Summary(len(values), float(values.mean()), float(values.std(ddof=1)), float(low), float(high))


def relative_difference(score: float, baseline: float) -> float:
    """Return ``(score - baseline) / |baseline|``; 0.02 means two per cent more than the baseline."""
    ratio = score / baseline - 1
    # A score of -1 is more than one of -2.
    return ratio if baseline > 0 else -ratio


def relative_difference_of_means(scores: Numbers, baselines: Numbers) -> float:
    """Return the relative difference of the mean score over data sets (the average row of Xue et al. 2021, version 2).

    Args:
        scores: A method's score on each data set, shape ``(n,)``.
        baselines: The baseline's, shape ``(n,)``.
    """
    return relative_difference(float(np.mean(scores)), float(np.mean(baselines)))


def mean_relative_difference(scores: Numbers, baselines: Numbers) -> float:
    """Return the mean over data sets of the relative differences (the averages in the text of version 1).

    Args:
        scores: A method's score on each data set, shape ``(n,)``.
        baselines: The baseline's, shape ``(n,)``.
    """
    return float(np.mean([relative_difference(a, b) for a, b in zip(scores, baselines, strict=True)]))


@dataclass(frozen=True)
class SignedRankTest:
    """Result of a two-sided Wilcoxon signed-rank test.

    Attributes:
        p_value: Probability of a rank sum as far from its mean under the null hypothesis; 1 if all differences are 0.
        positive: Sum of the ranks of positive differences.
        negative: Sum of the ranks of negative differences.
        num_pairs: Number of pairs, including those without a difference.
        num_zeros: Number of pairs without a difference; the test leaves them out.
    """

    p_value: float
    positive: float
    negative: float
    num_pairs: int
    num_zeros: int


def signed_rank_test(scores: Numbers, baselines: Numbers, digits: int = 12) -> SignedRankTest:
    """Return Wilcoxon's two-sided signed-rank test of paired scores.

    Pairs without a difference are left out, equal differences share their mean rank. The p-value is exact: the
    distribution over all signs of the ranks at hand, ties included. With 15 pairs it is at least 2^-14 = 6.1e-5.

    ``scipy.stats.wilcoxon`` was considered. Its method "exact" is not exact with ties, and ``PermutationMethod`` goes
    through all 2^n signs, which takes too long with more than some 20 pairs. Five folds with five seeds are 25 pairs.

    Args:
        scores: A method's scores, shape ``(n,)``.
        baselines: The other method's scores of the same data, folds and seeds, in the same order, shape ``(n,)``.
        digits: Number of decimals to which differences are rounded, so that 0.3 - 0.2 and 0.2 - 0.1 are a tie.
    """
    from scipy import stats

    differences = np.round(np.asarray(scores, dtype=float) - np.asarray(baselines, dtype=float), digits)
    kept = differences[differences != 0]
    zeros = len(differences) - len(kept)
    if len(kept) == 0:
        return SignedRankTest(1.0, 0.0, 0.0, len(differences), zeros)
    ranks: np.ndarray = stats.rankdata(np.abs(kept))
    positive = float(np.sum(ranks[kept > 0]))
    negative = float(np.sum(ranks[kept < 0]))
    # Shared ranks are multiples of a half, so twice a rank is a whole number.
    doubled = np.rint(2 * ranks).astype(np.int64)
    p_value = _exact_p_value(doubled, round(2 * min(positive, negative)))
    return SignedRankTest(p_value, positive, negative, len(differences), zeros)


def _exact_p_value(doubled_ranks: np.ndarray, smaller: int) -> float:
    """Return P(rank sum <= smaller or >= total - smaller) when each rank is positive with probability 1/2.

    ``probability[s]`` is the probability of the sum ``s``; the ranks are added one after the other. Larger sums than
    ``smaller`` do not count, and do not lead to smaller ones.
    """
    probability = np.zeros(smaller + 1)
    probability[0] = 1.0
    for rank in doubled_ranks:
        shifted = np.zeros_like(probability)
        shifted[rank:] = probability[: max(0, len(probability) - rank)]
        probability = (probability + shifted) / 2
    return min(1.0, 2 * float(probability.sum()))


def smallest_p(pairs: int) -> float:
    """Return the smallest p-value that the two-sided signed-rank test can have: ``2^(1 - n)``, of ``n`` pairs.

    All pairs then differ in one direction, which is one of ``2^n`` equally probable ways, and so is the opposite one.
    """
    return min(1.0, 2.0 ** (1 - pairs))


def pairs_needed(methods: int = 1) -> int:
    """Return the number of pairs from which on a test can be significant, with Holm's correction for some methods."""
    pairs = 1
    while methods * smallest_p(pairs) >= LEVEL:
        pairs += 1
    return pairs


def holm(p_values: Numbers) -> list[float]:
    """Return Holm's adjusted p-values, in the order of the arguments.

    Rejecting the hypotheses with an adjusted value below a level keeps the family-wise error rate at that level.
    """
    values = np.asarray(p_values, dtype=float)
    order = np.argsort(values, kind="stable")
    steps = values[order] * (len(values) - np.arange(len(values)))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return [float(value) for value in adjusted]


@dataclass(frozen=True)
class Ranks:
    """Average ranks of methods over data sets.

    Attributes:
        average: Mean rank of each method, 1 is best; equal scores share their mean rank.
        statistic: Friedman's chi-square, corrected for ties; NaN for two methods, or if all methods are equal on all
            data sets.
        p_value: Its p-value by the chi-square distribution with k - 1 degrees of freedom, or NaN.
        num_blocks: Number of data sets.
    """

    average: dict[str, float]
    statistic: float
    p_value: float
    num_blocks: int


def average_ranks(scores: Mapping[str, Numbers], mode: str = "max", digits: int = 12) -> Ranks:
    """Return the average rank of each method, and Friedman's test that three or more methods are alike.

    Args:
        scores: By method, the scores on all data sets (or blocks), shape ``(n,)``, in the same order for all methods.
        mode: ``"max"`` if larger scores are better, else ``"min"``.
        digits: Number of decimals to which scores are rounded, so that 0.3 and 0.1 + 0.2 are a tie.
    """
    from scipy import stats

    table = np.round(np.stack([np.asarray(values, dtype=float) for values in scores.values()], axis=1), digits)
    blocks, methods = table.shape
    ranks: np.ndarray = stats.rankdata(-table if mode == "max" else table, axis=1)
    average = {name: float(rank) for name, rank in zip(scores, ranks.mean(axis=0), strict=True)}
    are_equal = bool(np.all(ranks == ranks[:, :1]))
    if methods < 3 or are_equal:
        return Ranks(average, math.nan, math.nan, blocks)
    test = stats.friedmanchisquare(*ranks.T)
    return Ranks(average, float(test.statistic), float(test.pvalue), blocks)


def most_representative_fold(scores: Mapping[int, Numbers], baselines: Mapping[int, Numbers]) -> int:
    """Return the fold whose gap between two methods is nearest to the mean gap (Xue et al. 2021, Fig. 2).

    Args:
        scores: The scores of one method by fold, one score for each seed.
        baselines: The scores of the other method, with the same folds.
    """
    gaps = {fold: float(np.mean(scores[fold]) - np.mean(baselines[fold])) for fold in sorted(scores)}
    mean = float(np.mean(list(gaps.values())))
    return min(gaps, key=lambda fold: abs(gaps[fold] - mean))


def smooth(values: Numbers, interval: int) -> np.ndarray:
    """Return the means over successive intervals without overlap (the curves of Xue et al. 2021).

    Args:
        values: Shape ``(n,)``; NaN are left out of their interval's mean.
        interval: Number of values in an interval; the last interval may have fewer.

    Returns:
        Shape ``(ceil(n / interval),)``; NaN for an interval without a value.
    """
    array = np.asarray(values, dtype=float)
    means = []
    for start in range(0, len(array), interval):
        part = array[start : start + interval]
        known = part[~np.isnan(part)]
        means.append(np.mean(known) if len(known) else math.nan)
    return np.array(means)
