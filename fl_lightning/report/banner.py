"""Sentences that the reader of an experiment must know first."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fl_lightning.report.experiment import CurveColumns, Experiment
from fl_lightning.report.pages import Grid
from fl_lightning.report.reference import reference_sentence
from fl_lightning.report.settings import versions_of
from fl_lightning.report.texts import number, unit
from fl_lightning.representation import counted, joined

_MARGIN = 0.01  # above a constant prediction, as a share of 1


def warnings_of(experiment: Experiment) -> list[str]:
    """Return the sentences at the top of a report."""
    found = [
        *_stand_ins(experiment),
        reference_sentence(experiment),
        _incomplete(experiment),
        *_at_chance(experiment),
        _on_test(experiment),
        _versions(experiment),
    ]
    return [sentence for sentence in found if sentence]


def _stand_ins(experiment: Experiment) -> list[str]:
    stand_ins: dict[str, list[str]] = {}
    for data in experiment.data:
        if text := experiment.table["data"][data]["stand_in"]:
            stand_ins.setdefault(text, []).append(data)
    return [f"Stand-in data: {', '.join(names)}. {text}" for text, names in stand_ins.items()]


def _incomplete(experiment: Experiment) -> str | None:
    expected = experiment.num_expected * len(experiment.table["data"]) * len(experiment.table["methods"])
    scored, failed, diverged = experiment.num_finished, len(experiment.failed), len(experiment.diverged)
    if scored == expected:
        return None
    missing = expected - scored - failed - diverged
    parts = [f"{missing} are missing"] if missing else []
    parts += [f"{failed} failed"] if failed else []
    parts += [f"the score of {diverged} is NaN or infinite"] if diverged else []
    which = joined(parts)
    listed = "; they are listed below, and no number includes them" if failed or diverged else ""
    return (
        f"The experiment is not complete: {scored:,} of {expected:,} runs have a score. {which[0].upper()}{which[1:]}"
        f"{listed}. Means of different numbers of runs stand side by side."
    )


def finished_grid(experiment: Experiment) -> Grid | None:
    """Return the number of runs with a score by data set and method; ``None`` if all have one."""
    names = list(experiment.table["data"]), list(experiment.table["methods"])
    counts = {data: [len(experiment.runs(data, method)) for method in names[1]] for data in names[0]}
    if all(count == experiment.num_expected for row in counts.values() for count in row):
        return None
    rows = [[data, *map(str, row)] for data, row in counts.items()]
    caption = f"Runs with a score, of {experiment.num_expected} for each data set and method."
    return Grid("finished", caption, ["data", *names[1]], rows).turned_if_wide("method", 1)


def open_cycles(experiment: Experiment) -> str:
    """Return a sentence about runs that end after their last aggregation; empty if there are none."""
    found = []
    for data in experiment.data:
        for method in experiment.methods:
            late = [_rounds_after_aggregation(curve) for curve in experiment.curves(data, method)]
            if any(late):
                most = counted(max(late), "round")
                found.append(
                    f"{method} on {data} ({np.count_nonzero(late)} of {counted(len(late), 'run')}, up to {most})"
                )
    if not found:
        return ""
    return (
        f"These runs end after their last aggregation, so that their last rounds are in no aggregated model: "
        f"{', '.join(found)}. A number of rounds that is a multiple of `redistributions` ends with an aggregation."
    )


def _rounds_after_aggregation(curve: CurveColumns) -> int:
    aggregated = np.flatnonzero(curve["fed/aggregated"] == 1) if "fed/aggregated" in curve else np.empty(0)
    return len(curve["round"]) - 1 - int(aggregated[-1]) if len(aggregated) else 0


def _at_chance(experiment: Experiment) -> list[str]:
    """Return a sentence for each data set where a method is no better than a constant prediction."""
    found = []
    for data in experiment.data:
        constants = [float(row["constant_score"]) for row in experiment.runs_of(data) if row.get("constant_score")]
        constant = float(np.mean(constants)) if constants else math.nan
        if not math.isfinite(constant) or experiment.mode(data) != "max" or not experiment.percent(data):
            continue
        means = {method: list(experiment.scores(data, method).values()) for method in experiment.methods}
        weak = [method for method, scores in means.items() if scores and np.mean(scores) < constant + _MARGIN]
        if weak:
            shown = f"{number(experiment, data, constant)} {unit(experiment, data)}"
            found.append(
                f"At the level of chance: {_listed(weak, experiment.methods)} on {data}. Predicting one class for "
                f"every sample scores up to {shown}. Differences between such results mean nothing."
            )
    return found


def _listed(names: Sequence[str], everything: Sequence[str]) -> str:
    return "all methods" if len(names) == len(everything) > 1 else ", ".join(names)


def _on_test(experiment: Experiment) -> str | None:
    on_test = [data for data in experiment.data if experiment.table["data"][data]["validate_on_test"]]
    if not on_test:
        return None
    which = "all data sets" if len(on_test) == len(experiment.data) else ", ".join(on_test)
    return f"The curves of {which} are of the test set, as in the paper."


def _versions(experiment: Experiment) -> str | None:
    versions = versions_of(experiment)
    if len(versions) < 2:
        return None
    return (
        f"The runs are of {len(versions)} versions of the code: {', '.join(versions)}. Differences may come from the "
        "code. To compare methods, run the table again in an empty folder."
    )
