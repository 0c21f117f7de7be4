"""Tables that compare methods: scores, relative differences, ranks, and the numbers of a paper."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fl_lightning.experiment.statistics import (
    average_ranks,
    mean_relative_difference,
    relative_difference,
    relative_difference_of_means,
    signed_rank_test,
    summarize,
)
from fl_lightning.report.experiment import Experiment
from fl_lightning.report.pages import Grid
from fl_lightning.report.significance import BETTER, LEVEL, WORSE, holm_p, marks
from fl_lightning.report.texts import metric_and_unit, number, p_text, signed

_DIGITS = 12  # decimals, as the tests of means round


def score_grid(experiment: Experiment) -> Grid:
    """Return the mean and the standard deviation of each method's test score on each data set."""
    rows: list[list[str]] = []
    strong: set[tuple[int, int]] = set()
    for row, data in enumerate(experiment.data):
        marked = marks(experiment, data)
        means = _means(experiment, data)
        texts = [_mean_and_sd(experiment, data, method) for method in experiment.methods]
        cells = [
            " ".join(filter(None, [text, marked.get(method)]))
            for method, text in zip(experiment.methods, texts, strict=True)
        ]
        rows.append([data, metric_and_unit(experiment, data), *cells])
        best = _best(means, experiment.mode(data))
        strong |= {(row, place) for place, method in enumerate(experiment.methods, start=2) if method in best}
    note = "Bold: best mean."
    if any(cell.endswith((BETTER, WORSE)) for row in rows for cell in row):
        note += (
            f" Compared with {experiment.baseline} by a Wilcoxon signed-rank test (Holm-corrected p < {LEVEL}): "
            f"{BETTER} better, {WORSE} worse."
        )
    if any("(clients)" in row[1] for row in rows):
        note += " (clients): of each test client, and then the mean over clients."
    caption = "Test scores: mean ± standard deviation over folds and seeds."
    header = ["data", "metric", *experiment.methods]
    grid = Grid("scores", caption, header, rows, strong, text_columns=(0, 1), note=note)
    return grid.turned_if_wide("method", 2)


def relative_grid(experiment: Experiment) -> Grid | None:
    """Return the differences relative to the baseline, in per cent, and averages over data sets of the same metric.

    Returns:
        The table; ``None`` if the baseline or every other method has no finished run, or the baseline scores 0.
    """
    others = [method for method in experiment.methods if method != experiment.baseline]
    if not others or experiment.baseline not in experiment.methods:
        return None
    rows: list[list[str]] = []
    strong: set[tuple[int, int]] = set()
    whole: dict[str, list[str]] = {}  # the data sets that all methods have finished, by metric
    for data in experiment.data:
        means = _means(experiment, data)
        base = means[experiment.baseline]
        if not math.isfinite(base) or base == 0:
            continue
        if all(math.isfinite(mean) for mean in means.values()):
            whole.setdefault(metric_and_unit(experiment, data), []).append(data)
        changes = {method: 100 * relative_difference(means[method], base) for method in others}
        gains = {method: experiment.sign(data) * change for method, change in changes.items() if change == change}
        best = max(gains.values(), default=0.0)
        strong |= {(len(rows), place) for place, m in enumerate(others, 3) if 0 < best == gains.get(m)}
        shown = [data, metric_and_unit(experiment, data), number(experiment, data, base)]
        rows.append([*shown, *(signed(changes[method]) for method in others)])
    if not rows:  # nothing is relative to 0
        return None
    averaged = {metric: names for metric, names in whole.items() if len(names) > 1}
    for metric, names in averaged.items():
        rows += _averages(experiment, metric, names, others)
    note = f"{experiment.baseline}: its mean score. Bold: the largest gain."
    if averaged:
        note += (
            " Ratio of means: the mean score over data sets, relative to that of the baseline. Mean of ratios: the "
            "mean of the differences of single data sets. Both take the data sets that all methods have finished."
        )
    if len(whole) > 1:
        note += " Data sets of different metrics have no common average."
    caption = f"Differences relative to {experiment.baseline}, in per cent."
    header = ["data", "metric", experiment.baseline, *others]
    grid = Grid("relative", caption, header, rows, strong, text_columns=(0, 1), note=note)
    return grid.turned_if_wide("method", 2)


def _averages(experiment: Experiment, metric: str, names: list[str], others: list[str]) -> list[list[str]]:
    """Return the two average rows of data sets with the same metric."""
    means = [_means(experiment, data) for data in names]
    base = [entry[experiment.baseline] for entry in means]
    total = number(experiment, names[0], float(np.mean(base)))
    by_method = [[entry[method] for entry in means] for method in others]
    rows = []
    for title, average in (
        ("ratio of means", relative_difference_of_means),
        ("mean of ratios", mean_relative_difference),
    ):
        changes = [signed(100 * average(scores, base)) for scores in by_method]
        rows.append([f"{title}, {len(names)} sets", metric, total, *changes])
    return rows


def rank_grid(experiment: Experiment) -> Grid | None:
    """Return the average ranks over data sets; ``None`` if there are fewer than two data sets or methods."""
    methods = experiment.methods
    whole = [data for data in experiment.data if all(experiment.scores(data, method) for method in methods)]
    if len(whole) < 2 or len(methods) < 2:
        return None
    signs = np.array([experiment.sign(data) for data in whole])
    means = {method: np.array([_means(experiment, data)[method] for data in whole]) for method in methods}
    ranks = average_ranks({method: signs * values for method, values in means.items()})
    # differences of different metrics have no common scale; ranks have
    tested = len({metric_and_unit(experiment, data) for data in whole}) == 1 and experiment.baseline in means
    rows = []
    for method in sorted(methods, key=lambda name: ranks.average[name]):
        row = [method, f"{ranks.average[method]:.2f}"]
        if tested:
            test = signed_rank_test(means[method], means[experiment.baseline])
            row.append("" if method == experiment.baseline else p_text(test.p_value))
        rows.append(row)
    caption = f"Average ranks over {ranks.num_blocks} data sets by mean score; 1 is best."
    note = f"Friedman's test that all methods are alike: p = {p_text(ranks.p_value) or 'unknown'}."
    if tested:
        note += (
            f" The column p: Wilcoxon signed-rank test against {experiment.baseline} over data sets, uncorrected; with "
            f"{len(whole)} data sets the smallest p-value is {p_text(2.0 ** (1 - len(whole)))}."
        )
    header = ["method", "average rank", *(["p"] if tested else [])]
    return Grid("ranks", caption, header, rows, note=note)


def paper_grid(experiment: Experiment) -> Grid | None:
    """Return the relative differences beside those of the paper; ``None`` if the table gives none of the paper."""
    rows = []
    for data in experiment.data:
        paper = experiment.table["data"][data].get("paper") or {}
        means = _means(experiment, data)
        base = means.get(experiment.baseline, math.nan)
        for method in experiment.methods:
            if method not in paper or not math.isfinite(base) or base == 0 or not math.isfinite(means[method]):
                continue
            place = [data, metric_and_unit(experiment, data), method]
            if method == experiment.baseline:
                rows.append([*place, number(experiment, data, base), f"{paper[method]:.2f}", "", ""])
                continue
            change, p = 100 * relative_difference(means[method], base), holm_p(experiment, data, method)
            agrees = _agreement(change, paper[method], p)
            rows.append([*place, signed(change), signed(paper[method]), agrees, p_text(p)])
    if not rows:
        return None
    caption = f"Here and in the paper: score of {experiment.baseline}, and differences relative to it in per cent."
    note = f"Same sign: whether a difference that is significant here (p, Holm < {LEVEL}) has the sign of the paper's."
    header = ["data", "metric", "method", "here", "paper", "same sign", "p, Holm"]
    return Grid("paper", caption, header, rows, text_columns=(0, 1, 2, 5), note=note, name_columns=(0, 2))


def _agreement(here: float, there: float, p: float) -> str:
    if math.isnan(p):
        return "not tested"
    if p >= LEVEL:
        return "not significant"
    return "yes" if np.sign(round(here, 2)) == np.sign(there) else "no"


def _means(experiment: Experiment, data: str) -> dict[str, float]:
    """Return the mean score of each method; NaN without a finished run.

    Means are rounded, so that those of the same numbers in another order are equal.
    """
    scores = {method: list(experiment.scores(data, method).values()) for method in experiment.methods}
    return {method: round(float(np.mean(values)), _DIGITS) if values else math.nan for method, values in scores.items()}


def _mean_and_sd(experiment: Experiment, data: str, method: str) -> str:
    scores = list(experiment.scores(data, method).values())
    if not scores:
        return ""
    summary = summarize(scores)
    numbers = (summary.mean, summary.sd) if summary.num > 1 else (summary.mean,)
    return " ± ".join(number(experiment, data, value, spread=summary.sd) for value in numbers)


def _best(means: Mapping[str, float], mode: str) -> set[str]:
    """Return the methods with the best mean; none if all are equal, or there is a single one."""
    known = [value for value in means.values() if math.isfinite(value)]
    if len(set(known)) < 2:
        return set()
    best = max(known) if mode == "max" else min(known)
    return {method for method, value in means.items() if value == best}
