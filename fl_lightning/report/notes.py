"""What the reader of an experiment must know: which of the sentences are true of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd

from fl_lightning.experiment.statistics import LEVEL, pairs_needed, smallest_p
from fl_lightning.report.names import p_text
from fl_lightning.report.reference import reference_sentence
from fl_lightning.report.results import RUN, Results, groups_of
from fl_lightning.report.texts import text
from fl_lightning.words import quantity

#: A score that is above that of a constant prediction by less, as a share of 1, is at the level of chance.
_MARGIN = 0.01


def warnings_of(results: Results) -> list[str]:
    """Return the sentences at the top of a report."""
    return [sentence for sentence in _warnings(results) if sentence]


def _warnings(results: Results) -> Iterator[str]:
    stand_ins = {data: results.table["data"][data]["stand_in"] for data in results.data}
    known = pd.Series(stand_ins, dtype=object).dropna()
    for sentence, names in known.groupby(known, sort=False):
        yield text("stand_in", names.index, sentence)
    yield reference_sentence(results)
    without_score = results.num_cells - len(results.scored)
    if without_score:
        missing = without_score - len(results.failed) - len(results.diverged)
        yield text("incomplete", results, missing)
    constants = results.scored.groupby("data")["constant_score"].mean()
    for data in results.data:
        yield _chance_sentence(results, data, constants[data])
    on_test = [data for data in results.data if results.table["data"][data]["validate_on_test"]]
    if on_test:
        yield text("on_test", on_test)
    if results.table["select"] == "best on test":
        yield text("selected_on_test")
    tuned = results.tuned_on_test()
    if tuned:
        yield text("tuned_on_test", tuned)
    versions = versions_of(results)
    if len(versions) > 1:
        yield text("versions", versions)


def _chance_sentence(results: Results, data: str, constant: float) -> str:
    """Return a sentence on methods that are no better than the best constant prediction; empty if there are none."""
    scale = results.scale(data)
    if results.sign(data) < 0 or not scale.percent or not math.isfinite(constant):
        return ""
    weak = [method for method in results.methods if results.mean(data, method) < constant + _MARGIN]
    return text("at_chance", weak, data, scale.text(constant)) if weak else ""


def versions_of(results: Results) -> list[str]:
    """Return the versions of the code that made the runs with a score, sorted."""
    return sorted(set(results.scored["code"]))


def power_sentences(results: Results) -> list[str]:
    """Return sentences about the data sets that have too few runs for any difference to be significant."""
    if not results.others:
        return []
    # Data sets with the same number of tested methods and of pairs share a sentence.
    few: dict[tuple[int, int], list[str]] = {}
    for data in results.data:
        pairs = results.tests["pairs"].get(data, pd.Series(dtype=int))
        methods = len(pairs)
        most = max(pairs, default=0)
        if not methods or methods * smallest_p(most) >= LEVEL:
            few.setdefault((methods, most), []).append(data)
    sentences = []
    for (methods, most), names in sorted(few.items()):
        smallest = smallest_p(most)
        corrected = min(1.0, methods * smallest)
        needed = pairs_needed(methods)
        sentences.append(text("no_power", results, names, methods, most, p_text(smallest), p_text(corrected), needed))
    return sentences


def open_cycles(results: Results) -> str:
    """Return a sentence about runs that end after their last aggregation; empty if there are none."""
    found = []
    curves = results.curves
    runs = curves.groupby(RUN, sort=False)
    place = runs.cumcount()
    # The place of each run's last aggregation is NaN for a run without any.
    aggregated = place.where(curves["fed/aggregated"] == 1)
    last = aggregated.groupby([curves[key] for key in RUN], sort=False).max()
    after = (runs.size() - 1 - last).fillna(0).astype(int)
    for (data, method), group in groups_of(after.rename("rounds").reset_index(), "data", "method"):
        late = group["rounds"]
        if late.any():
            number = f"{np.count_nonzero(late)} of {quantity(len(late), 'run')}"
            found.append(f"{method} on {data} ({number}, up to {quantity(int(late.max()), 'round')})")
    return text("open_cycles", found) if found else ""


def missing_columns(results: Results) -> str:
    """Return a sentence about columns that the table names and no run has a value of; empty if there are none."""
    curves = results.curves
    missing = []
    for data in results.data:
        of_data = curves[curves["data"] == data]
        for column in results.curve_columns(data):
            if not np.isfinite(of_data[column]).any():
                missing.append(f"{column} of {data}")
    return text("missing_columns", missing) if missing else ""
