"""Tests of the methods against the baseline."""

from __future__ import annotations

import math

import numpy as np

from fl_lightning.experiment.statistics import SignedRankTest, holm, signed_rank_test, summarize
from fl_lightning.report.experiment import Experiment
from fl_lightning.report.pages import Grid
from fl_lightning.report.texts import interval, metric_and_unit, number, p_text
from fl_lightning.representation import joined

LEVEL = 0.05
BETTER, WORSE = "†", "‡"
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


def marks(experiment: Experiment, data: str) -> dict[str, str]:
    """Return a mark for each method that is significantly better or worse than the baseline."""
    found = {}
    for method, (test, p) in baseline_tests(experiment, data).items():
        if p < LEVEL:
            gain = experiment.sign(data) * (test.positive - test.negative) > 0
            found[method] = BETTER if gain else WORSE
    return found


def power_sentences(experiment: Experiment) -> list[str]:
    """Return sentences about the data sets that have too few runs for any difference to be significant."""
    few: dict[tuple[int, int], list[str]] = {}
    single = []
    for data in experiment.data:
        tests = baseline_tests(experiment, data)
        if not tests:
            single.append(data)
            continue
        pairs, methods = max(test.num_pairs for test, _ in tests.values()), len(tests)
        if methods * _smallest_p(pairs) >= LEVEL:
            few.setdefault((pairs, methods), []).append(data)
    if len(experiment.methods) < 2 or experiment.baseline not in experiment.methods:
        return []
    sentences = []
    if single:
        sentences.append(
            f"{_on(single, experiment)}no method has two runs that can be paired with runs of {experiment.baseline}, "
            "so that no difference can be tested."
        )
    for (pairs, methods), names in few.items():
        smallest = _smallest_p(pairs)
        corrected = f", and {p_text(min(1.0, methods * smallest))} after the correction for {methods} methods"
        needed = next(n for n in range(2, 100) if methods * _smallest_p(n) < LEVEL)
        sentences.append(
            f"{_on(names, experiment)}with {pairs} pairs of runs no difference can be significant: the smallest "
            f"p-value is {p_text(smallest)}{corrected if methods > 1 else ''}. It takes at least {needed} pairs."
        )
    return [sentence[0].upper() + sentence[1:] for sentence in sentences]


def _smallest_p(pairs: int) -> float:
    """Return the p-value of pairs that all differ in one direction."""
    return float(2.0 ** (1 - pairs))


def _on(names: list[str], experiment: Experiment) -> str:
    return "" if len(names) == len(experiment.data) else f"On {joined(names)} "


def significance_grid(experiment: Experiment) -> Grid | None:
    """Return the tests against the baseline; ``None`` if no method has two pairs of runs."""
    rows: list[list[str]] = []
    strong: set[tuple[int, int]] = set()
    for data in experiment.data:
        marked = marks(experiment, data)
        for method, (test, adjusted) in baseline_tests(experiment, data).items():
            own, other = experiment.pairs(data, method)
            difference = summarize(np.subtract(own, other))
            half = (difference.high - difference.low) / 2
            mark = marked.get(method, "")
            if mark == BETTER:
                strong.add((len(rows), 8))
            rows.append(
                [
                    data,
                    method,
                    metric_and_unit(experiment, data),
                    number(experiment, data, difference.mean, sign=True, spread=half),
                    interval(experiment, data, difference.low, difference.high),
                    str(test.num_pairs),
                    str(test.num_zeros),
                    p_text(test.p_value),
                    " ".join(filter(None, [p_text(adjusted), mark])),
                ]
            )
    if not rows:
        return None
    caption = f"Paired differences to {experiment.baseline} over folds and seeds."
    note = (
        "Difference: mean with its 95 % t interval, in the unit of the metric (of per cent: points). p: exact "
        "two-sided Wilcoxon signed-rank test; it leaves out pairs without a difference (zeros). p, Holm: corrected "
        f"over the methods of a data set; {BETTER}: better than {experiment.baseline} at the level {LEVEL}, {WORSE}: "
        "worse. Runs of overlapping folds are not independent, so the p-values are guides."
    )
    header = ["data", "method", "metric", "difference", "95 % interval", "pairs", "zeros", "p", "p, Holm"]
    return Grid("significance", caption, header, rows, strong, (0, 1, 2), note, (0, 1))


def holm_p(experiment: Experiment, data: str, method: str) -> float:
    """Return the corrected p-value of a method on a data set; NaN if it is not tested."""
    tests = baseline_tests(experiment, data)
    return tests[method][1] if method in tests else math.nan
