"""Tables that compare methods: scores, relative differences, significance tests and ranks."""

from __future__ import annotations

import math

import numpy as np

from fl_lightning.experiment.statistics import (
    SignedRankTest,
    average_ranks,
    holm,
    mean_relative_difference,
    relative_difference,
    relative_difference_of_means,
    signed_rank_test,
    summarize,
)
from fl_lightning.report.experiment import Experiment
from fl_lightning.report.pages import Grid

LEVEL = 0.05
BaselineTests = dict[str, tuple[SignedRankTest, float]]
"""By method: its test against the baseline, and the p-value after Holm's correction."""


def baseline_tests(experiment: Experiment, data: str) -> BaselineTests:
    """Return the signed-rank tests of all methods against the baseline on one data set.

    Holm's correction takes these tests as one family. A method needs two pairs of runs to be tested.
    """
    found = {}
    for method in experiment.methods:
        own, other = experiment.pairs(data, method)
        if method != experiment.baseline and len(own) > 1:
            found[method] = signed_rank_test(own, other)
    adjusted = holm([test.p_value for test in found.values()])
    return {method: (test, p) for (method, test), p in zip(found.items(), adjusted, strict=True)}


def score_grid(experiment: Experiment) -> Grid:
    """Return the mean and the standard deviation of each method's test score on each data set."""
    rows: list[list[str]] = []
    strong: set[tuple[int, int]] = set()
    for number, data in enumerate(experiment.data):
        significant = {method for method, (_, p) in baseline_tests(experiment, data).items() if p < LEVEL}
        means = {method: _mean(experiment, data, method) for method in experiment.methods}
        best = _best(means, experiment.mode(data))
        cells = [data]
        for column, method in enumerate(experiment.methods, start=1):
            text = _mean_and_sd(experiment, data, method)
            cells.append(f"{text} †" if method in significant else text)
            if method in best:
                strong.add((number, column))
        rows.append(cells)
    unit = ", in per cent" if experiment.percent else ""
    caption = f"Test scores{unit}: mean ± standard deviation over folds and seeds."
    note = (
        f"Bold: best mean. †: differs from {experiment.baseline} (Wilcoxon signed-rank test, Holm-corrected p < "
        f"{LEVEL})."
    )
    return Grid("scores", caption, ["data", *experiment.methods], rows, strong, note=note)


def relative_grid(experiment: Experiment) -> Grid | None:
    """Return the differences relative to the baseline, in per cent, and two averages of them.

    Returns:
        The table; ``None`` if the baseline or every other method has no finished run.
    """
    others = [method for method in experiment.methods if method != experiment.baseline]
    if not others or experiment.baseline not in experiment.methods:
        return None
    rows: list[list[str]] = []
    strong: set[tuple[int, int]] = set()
    whole: list[dict[str, float]] = []
    for data in experiment.data:
        means = {method: _mean(experiment, data, method) for method in experiment.methods}
        base = means[experiment.baseline]
        if not math.isfinite(base) or base == 0:
            continue
        if all(math.isfinite(mean) for mean in means.values()):
            whole.append(means)
        best = _best({method: means[method] for method in others}, experiment.mode(data))
        strong |= {(len(rows), others.index(method) + 2) for method in best}
        changes = [100 * relative_difference(means[method], base) for method in others]
        rows.append([data, number(experiment, base), *map(signed, changes)])
    if len(whole) > 1:
        base_means = [means[experiment.baseline] for means in whole]
        by_method = {method: [means[method] for means in whole] for method in others}
        total = number(experiment, float(np.mean(base_means)))
        of_means = [100 * relative_difference_of_means(by_method[method], base_means) for method in others]
        mean_of = [100 * mean_relative_difference(by_method[method], base_means) for method in others]
        rows.append(["ratio of means", total, *map(signed, of_means)])
        rows.append(["mean of ratios", total, *map(signed, mean_of)])
    caption = f"Differences relative to {experiment.baseline}, in per cent."
    note = f"The column {experiment.baseline} shows its mean score."
    if len(whole) > 1:
        note += (
            " Ratio of means: the mean score over data sets, relative to that of the baseline. Mean of ratios: the "
            "mean of the differences above. Both take the data sets that all methods have finished."
        )
    return Grid("relative", caption, ["data", experiment.baseline, *others], rows, strong, note=note)


def significance_grid(experiment: Experiment) -> Grid | None:
    """Return the tests against the baseline; ``None`` if no method has two pairs of runs."""
    rows: list[list[str]] = []
    strong: set[tuple[int, int]] = set()
    for data in experiment.data:
        for method, (test, adjusted) in baseline_tests(experiment, data).items():
            own, other = experiment.pairs(data, method)
            difference = summarize(np.subtract(own, other))
            if adjusted < LEVEL:
                strong.add((len(rows), 7))
            rows.append(
                [
                    data,
                    method,
                    number(experiment, difference.mean, sign=True),
                    interval(experiment, difference.low, difference.high),
                    str(test.num_pairs),
                    str(test.num_zeros),
                    p_text(test.p_value),
                    p_text(adjusted),
                ]
            )
    if not rows:
        return None
    caption = f"Paired differences to {experiment.baseline} over folds and seeds."
    note = (
        "Difference: mean with its 95 % t interval. p: exact two-sided Wilcoxon signed-rank test; it leaves out pairs "
        "without a difference (zeros). p, Holm: corrected over the methods of a data set. Runs of overlapping folds "
        "are not independent, so the p-values are guides. The smallest p-value that n pairs can have is 2^(1-n)."
    )
    header = ["data", "method", "difference", "95 % interval", "pairs", "zeros", "p", "p, Holm"]
    return Grid("significance", caption, header, rows, strong, text_columns=(0, 1), note=note)


def rank_grid(experiment: Experiment) -> Grid | None:
    """Return the average ranks over data sets; ``None`` if there are fewer than two data sets or methods."""
    methods = experiment.methods
    whole = [data for data in experiment.data if all(experiment.scores(data, method) for method in methods)]
    if len(whole) < 2 or len(methods) < 2:
        return None
    signs = np.array([1 if experiment.mode(data) == "max" else -1 for data in whole])
    means = {method: np.array([_mean(experiment, data, method) for data in whole]) for method in methods}
    ranks = average_ranks({method: signs * values for method, values in means.items()})
    rows = []
    for method in sorted(methods, key=lambda name: ranks.average[name]):
        p = (
            ""
            if method == experiment.baseline or experiment.baseline not in means
            else p_text(signed_rank_test(means[method], means[experiment.baseline]).p_value)
        )
        rows.append([method, f"{ranks.average[method]:.2f}", p])
    caption = f"Average ranks over {ranks.num_blocks} data sets by mean score; 1 is best."
    note = (
        f"Friedman's test that all methods are alike: p = {p_text(ranks.p_value)}. The column p: Wilcoxon signed-rank "
        f"test against {experiment.baseline} over data sets, uncorrected."
    )
    return Grid("ranks", caption, ["method", "average rank", "p"], rows, note=note)


def paper_grid(experiment: Experiment) -> Grid | None:
    """Return the relative differences beside those of the paper; ``None`` if the table gives none of the paper."""
    rows = []
    for data in experiment.data:
        paper = experiment.table["data"][data].get("paper") or {}
        base = _mean(experiment, data, experiment.baseline)
        for method in experiment.methods:
            if method not in paper or not math.isfinite(base) or base == 0:
                continue
            mean = _mean(experiment, data, method)
            if method == experiment.baseline:
                rows.append([data, method, number(experiment, mean), f"{paper[method]:.2f}", "", ""])
            elif math.isfinite(mean):
                change = 100 * relative_difference(mean, base)
                agree = "yes" if np.sign(round(change, 2)) == np.sign(paper[method]) else "no"
                tests = baseline_tests(experiment, data)
                p = tests[method][1] if method in tests else math.nan
                rows.append([data, method, signed(change), signed(paper[method]), agree, p_text(p)])
    if not rows:
        return None
    caption = f"Here and in the paper: score of {experiment.baseline}, and differences relative to it in per cent."
    note = "The sign of a difference that is not significant says little."
    header = ["data", "method", "here", "paper", "same sign", "p, Holm"]
    return Grid("paper", caption, header, rows, text_columns=(0, 1, 4), note=note)


def number(experiment: Experiment, value: float, sign: bool = False) -> str:
    """Return a score as a text; in per cent if the scores are shares."""
    if not math.isfinite(value):
        return ""
    text = f"{100 * value:+.2f}" if experiment.percent else f"{value:+.4f}"
    return text if sign else text.removeprefix("+")


def signed(value: float) -> str:
    """Return a relative difference in per cent as a text."""
    return f"{value:+.2f}" if math.isfinite(value) else ""


def interval(experiment: Experiment, low: float, high: float) -> str:
    """Return an interval as a text."""
    if not math.isfinite(low):
        return ""
    return f"{number(experiment, low, sign=True)} to {number(experiment, high, sign=True)}"


def p_text(p: float) -> str:
    """Return a p-value as a text."""
    if math.isnan(p):
        return ""
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def _mean(experiment: Experiment, data: str, method: str) -> float:
    scores = list(experiment.scores(data, method).values())
    return float(np.mean(scores)) if scores else math.nan


def _mean_and_sd(experiment: Experiment, data: str, method: str) -> str:
    scores = list(experiment.scores(data, method).values())
    if not scores:
        return ""
    summary = summarize(scores)
    spread = f" ± {number(experiment, summary.sd)}" if summary.num > 1 else ""
    return number(experiment, summary.mean) + spread


def _best(means: dict[str, float], mode: str) -> set[str]:
    known = [value for value in means.values() if math.isfinite(value)]
    if not known:
        return set()
    best = max(known) if mode == "max" else min(known)
    return {method for method, value in means.items() if value == best}
