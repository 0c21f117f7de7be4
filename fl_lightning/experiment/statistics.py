"""Statistics of scores: intervals, relative differences, paired tests, ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Numbers = Sequence[float] | np.ndarray


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
    return ratio if baseline > 0 else -ratio  # -1 is more than -2


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
    ranks = stats.rankdata(np.abs(kept))  # multiples of a half
    positive, negative = float(ranks[kept > 0].sum()), float(ranks[kept < 0].sum())
    p_value = _exact_p_value(np.rint(2 * ranks).astype(np.int64), round(2 * min(positive, negative)))
    return SignedRankTest(p_value, positive, negative, len(differences), zeros)


def _exact_p_value(doubled_ranks: np.ndarray, smaller: int) -> float:
    """Return P(rank sum <= smaller or >= total - smaller) when each rank is positive with probability 1/2."""
    probability = np.zeros(int(doubled_ranks.sum()) + 1)
    probability[0] = 1.0
    for rank in doubled_ranks:
        shifted = np.zeros_like(probability)
        shifted[rank:] = probability[: len(probability) - rank]
        probability = (probability + shifted) / 2
    return min(1.0, 2 * float(probability[: smaller + 1].sum()))


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
        statistic: Friedman's chi-square, corrected for ties; NaN if all methods are equal on all data sets.
        p_value: Its p-value by the chi-square distribution with k - 1 degrees of freedom, or NaN.
        num_blocks: Number of data sets.
    """

    average: dict[str, float]
    statistic: float
    p_value: float
    num_blocks: int


def average_ranks(scores: Mapping[str, Numbers], mode: str = "max", digits: int = 12) -> Ranks:
    """Return the average rank of each method, and Friedman's test that all methods are alike.

    Args:
        scores: By method, the scores on all data sets (or blocks), shape ``(n,)``, in the same order for all methods.
        mode: ``"max"`` if larger scores are better, else ``"min"``.
        digits: Number of decimals to which scores are rounded, so that 0.3 and 0.1 + 0.2 are a tie.
    """
    from scipy import stats

    table = np.round(np.stack([np.asarray(values, dtype=float) for values in scores.values()], axis=1), digits)
    ranks = stats.rankdata(-table if mode == "max" else table, axis=1)
    average = {name: float(rank) for name, rank in zip(scores, ranks.mean(axis=0), strict=True)}
    blocks, methods = ranks.shape
    # Friedman's statistic with ties: the squared deviations of rank sums over the variance of ranks within blocks
    spread = float(((ranks - (methods + 1) / 2) ** 2).sum()) / (methods - 1)
    if spread == 0:
        return Ranks(average, math.nan, math.nan, blocks)
    statistic = float(((ranks.sum(axis=0) - blocks * (methods + 1) / 2) ** 2).sum()) / spread
    return Ranks(average, statistic, float(stats.chi2.sf(statistic, methods - 1)), blocks)


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
    parts = [array[start : start + interval] for start in range(0, len(array), interval)]
    known = [part[~np.isnan(part)] for part in parts]
    return np.array([part.mean() if len(part) else math.nan for part in known])
