"""Sentences that the reader of an experiment must know."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from fl_lightning.checks import quantity
from fl_lightning.report.names import p_text
from fl_lightning.report.reference import reference_sentence
from fl_lightning.report.results import LEVEL, Results

_MARGIN = 0.01  # above a constant prediction, as a share of 1


def warnings_of(results: Results) -> list[str]:
    """Return the sentences at the top of a report."""
    found = [
        *_stand_ins(results),
        reference_sentence(results),
        _incomplete(results),
        *_at_chance(results),
        _on_test(results),
        _versions(results),
    ]
    return [sentence for sentence in found if sentence]


def _stand_ins(results: Results) -> list[str]:
    texts = pd.Series({data: results.table["data"][data]["stand_in"] for data in results.data}, dtype=object).dropna()
    groups = texts.groupby(texts, sort=False)
    return [f"Stand-in data: {', '.join(names.index)}. {text}" for text, names in groups]


def _incomplete(results: Results) -> str:
    expected = results.num_expected * len(results.table["data"]) * len(results.table["methods"])
    scored, failed, diverged = len(results.scored), len(results.failed), len(results.diverged)
    if scored == expected:
        return ""
    missing = expected - scored - failed - diverged
    return (
        f"The experiment is not complete: {scored:,} of {expected:,} runs have a score; {missing} missing, {failed} "
        f"failed, {diverged} with a score that is NaN or infinite. No number includes these. Means of different "
        "numbers of runs stand side by side."
    )


def _at_chance(results: Results) -> list[str]:
    """Return a sentence for each data set where a method is no better than a constant prediction."""
    constants, found = results.scored.groupby("data")["constant_score"].mean(), []
    for data in results.data:
        scale, means = results.scale(data), results.means.loc[data]
        weak = means.index[means < constants[data] + _MARGIN].tolist()
        if weak and results.sign(data) == 1 and scale.percent and math.isfinite(constants[data]):
            found.append(
                f"At the level of chance: {', '.join(weak)} on {data}. Predicting one class for every sample scores up "
                f"to {scale.text(constants[data])} %. Differences between such results mean nothing."
            )
    return found


def _on_test(results: Results) -> str:
    on_test = [data for data in results.data if results.table["data"][data]["validate_on_test"]]
    return f"The curves of {', '.join(on_test)} are of the test set, as in the paper." if on_test else ""


def _versions(results: Results) -> str:
    versions = versions_of(results)
    if len(versions) < 2:
        return ""
    return (
        f"The runs are of {len(versions)} versions of the code: {', '.join(versions)}. Differences may come from the "
        "code. To compare methods, run the table again in an empty folder."
    )


def versions_of(results: Results) -> list[str]:
    """Return the versions of the code that made the runs with a score, sorted."""
    return sorted(set(results.scored["code"]) - {""})


def power_sentences(results: Results) -> list[str]:
    """Return sentences about the data sets that have too few runs for any difference to be significant."""
    few: dict[tuple[int, int], list[str]] = {}
    for data in results.data if results.others else []:
        pairs = results.tests["pairs"].get(data, pd.Series(dtype=int))
        if not len(pairs) or len(pairs) * _smallest_p(pairs.max()) >= LEVEL:
            few.setdefault((len(pairs), pairs.max() if len(pairs) else 0), []).append(data)
    sentences = []
    for (methods, pairs), names in sorted(few.items()):
        if methods:
            needed = next(n for n in range(2, 100) if methods * _smallest_p(n) < LEVEL)
            why = (
                f"with {pairs} pairs of runs the smallest p-value is {p_text(_smallest_p(pairs))}, "
                f"{p_text(min(1.0, methods * _smallest_p(pairs)))} corrected for {quantity(methods, 'method')}. It "
                f"takes at least {needed} pairs"
            )
        else:
            why = f"no method has two runs that can be paired with runs of {results.baseline}"
        sentences.append(f"No difference can be significant on {', '.join(names)}: {why}.")
    return sentences


def _smallest_p(pairs: int) -> float:
    """Return the p-value of pairs that all differ in one direction."""
    return float(2.0 ** (1 - pairs))


def open_cycles(results: Results) -> str:
    """Return a sentence about runs that end after their last aggregation; empty if there are none."""
    found = []
    for (data, method), curves in results.curves.groupby(["data", "method"], sort=False):
        late = np.array([_rounds_after_aggregation(curve) for _, curve in curves.groupby(["fold", "seed"])])
        if late.any():
            runs = (
                f"{np.count_nonzero(late)} of {quantity(len(late), 'run')}, up to {quantity(int(late.max()), 'round')}"
            )
            found.append(f"{method} on {data} ({runs})")
    if not found:
        return ""
    return (
        "These runs end after their last aggregation, so that their last rounds are in no aggregated model: "
        f"{', '.join(found)}. A number of rounds that is a multiple of `redistributions` ends with an aggregation."
    )


def _rounds_after_aggregation(curve: pd.DataFrame) -> int:
    aggregated = np.flatnonzero(curve["fed/aggregated"] == 1)
    return len(curve) - 1 - int(aggregated[-1]) if len(aggregated) else 0


def missing_columns(results: Results) -> str:
    """Return a sentence about columns that the table names and no run has a value of; empty if there are none."""
    curves = results.curves
    missing = [
        f"{column} of {data}"
        for data in results.data
        for column in results.curve_columns(data)
        if not np.isfinite(curves.loc[curves["data"] == data, column]).any()
    ]
    return f"No run has logged a finite value of {', '.join(missing)}." if missing else ""
