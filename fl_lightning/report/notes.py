"""What the reader of an experiment must know: which of the sentences are true of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from fl_lightning.report.names import p_text
from fl_lightning.report.reference import reference_sentence
from fl_lightning.report.results import LEVEL, RUN, Results
from fl_lightning.report.texts import text
from fl_lightning.words import quantity

_MARGIN = 0.01  # above a constant prediction, as a share of 1


def warnings_of(results: Results) -> list[str]:
    """Return the sentences at the top of a report."""
    return [sentence for sentence in _warnings(results) if sentence]


def _warnings(results: Results) -> Iterator[str]:
    stand_ins = {data: results.table["data"][data]["stand_in"] for data in results.data}
    known = pd.Series(stand_ins, dtype=object).dropna()
    for sentence, names in known.groupby(known, sort=False):
        yield text("stand_in", names.index, sentence)
    yield reference_sentence(results)
    if without := results.num_cells - len(results.scored):
        yield text("incomplete", results, without - len(results.failed) - len(results.diverged))
    constants = results.scored.groupby("data")["constant_score"].mean()
    for data in results.data:  # where a method is no better than a constant prediction
        scale, means = results.scale(data), results.means.loc[data]
        weak = means.index[means < constants[data] + _MARGIN].tolist()
        if weak and results.sign(data) == 1 and scale.percent and math.isfinite(constants[data]):
            yield text("at_chance", weak, data, scale.text(constants[data]))
    if on_test := [data for data in results.data if results.table["data"][data]["validate_on_test"]]:
        yield text("on_test", on_test)
    if len(versions := versions_of(results)) > 1:
        yield text("versions", versions)


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
        needed = next(n for n in range(2, 100) if max(1, methods) * _smallest_p(n) < LEVEL)
        smallest = p_text(_smallest_p(pairs)), p_text(min(1.0, methods * _smallest_p(pairs)))
        sentences.append(text("no_power", results, names, methods, pairs, *smallest, needed))
    return sentences


def _smallest_p(pairs: int) -> float:
    """Return the p-value of pairs that all differ in one direction."""
    return float(2.0 ** (1 - pairs))


def open_cycles(results: Results) -> str:
    """Return a sentence about runs that end after their last aggregation; empty if there are none."""
    found = []
    curves = results.curves
    runs = curves.groupby(RUN, sort=False)
    place = runs.cumcount()
    # the place of each run's last aggregation, which a run without any does not have
    last = place.where(curves["fed/aggregated"] == 1).groupby([curves[key] for key in RUN], sort=False).max()
    after = (runs.size() - 1 - last).fillna(0).astype(int)
    for (data, method), late in after.groupby(level=["data", "method"], sort=False):
        if late.any():
            number = f"{np.count_nonzero(late)} of {quantity(len(late), 'run')}"
            found.append(f"{method} on {data} ({number}, up to {quantity(int(late.max()), 'round')})")
    return text("open_cycles", found) if found else ""


def missing_columns(results: Results) -> str:
    """Return a sentence about columns that the table names and no run has a value of; empty if there are none."""
    curves = results.curves
    missing = [
        f"{column} of {data}"
        for data in results.data
        for column in results.curve_columns(data)
        if not np.isfinite(curves.loc[curves["data"] == data, column]).any()
    ]
    return text("missing_columns", missing) if missing else ""
