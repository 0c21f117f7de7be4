"""The figures of an experiment's report, with their captions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fl_lightning.experiment.partition_picture import partition_picture
from fl_lightning.report.curves import draw_across, draw_curves
from fl_lightning.report.experiment import Experiment
from fl_lightning.report.metric_names import metric_name
from fl_lightning.report.pages import Picture, as_png
from fl_lightning.report.spread import draw_comparison, draw_spread, representative_fold

_DPI = 130
_WIDE = 900  # pixels; wider pictures of partitions take the whole page
_LONGEST = 80  # characters of a file's name
_DIAGNOSTICS = {
    "fed/central_distance": "DC: relative distance to the central model",
    "fed/divergence": "DL: mean pairwise cosine divergence of local models",
}


def curve_columns(experiment: Experiment, data: str) -> list[str]:
    """Return the columns of the curves of a data set that the report draws."""
    settings = experiment.table["data"][data]
    return list(settings["curves"] or [settings["monitor"]])


def missing_columns(experiment: Experiment) -> str:
    """Return a sentence about columns that the table names and no run has a value of; empty if there are none."""
    missing = [
        f"{column} of {data}"
        for data in experiment.data
        for column in curve_columns(experiment, data)
        if not any(
            np.isfinite(curve.get(column, np.nan)).any()
            for method in experiment.methods
            for curve in experiment.curves(data, method)
        )
    ]
    return f"No run has logged a finite value of {', '.join(missing)}." if missing else ""


def curves(experiment: Experiment) -> Iterator[Picture]:
    """Yield the validation curves of each data set."""
    for data in experiment.data:
        settings = experiment.table["data"][data]
        interval = int(settings["smoothing"])
        of = " on the test set" if settings["validate_on_test"] else ""
        smoothed = f", means over {interval} validations" if interval > 1 else ""
        for column in curve_columns(experiment, data):
            drawn = draw_curves(experiment, data, column, interval=interval)
            if drawn is not None:
                caption = f"{data}: {metric_name(column, stage=True)}{of}{smoothed}; {drawn.text}."
                yield Picture(file_name("curve", f"{data}-{column}"), caption, as_png(drawn.figure, _DPI))


def spread(experiment: Experiment) -> Iterator[Picture]:
    """Yield the scores of single runs of each data set."""
    for data in experiment.data:
        if max(len(experiment.scores(data, method)) for method in experiment.methods) < 2:
            continue
        fold = representative_fold(experiment, data)
        folds = "the shape of a mark is its fold" if len(experiment.table["folds"]) > 1 else ""
        shown = f"in full colour fold {fold}, whose gap is nearest to the mean gap" if fold is not None else ""
        notes = "; ".join(filter(None, [folds, shown]))
        caption = f"{data}: test score of each run{f' ({notes})' if notes else ''}; line: mean."
        yield Picture(file_name("spread", data), caption, as_png(draw_spread(experiment, data), _DPI))


def partitions(experiment: Experiment) -> Iterator[Picture]:
    """Yield the clients of each data set, in one of its partitions."""
    for data in experiment.data:
        path = partition_picture(experiment.folder, experiment.runs_of(data)[0]["partition"])
        if path is not None:
            png = path.read_bytes()
            _, fold, seed = path.stem.replace("_", " ").split("-", 2)
            caption = f"{data}: samples of each client by class; {fold}, {seed}."
            yield Picture(file_name("partition", data), caption, png, wide=_width(png) > _WIDE)


def _width(png: bytes) -> int:
    return int.from_bytes(png[16:20], "big")  # the header of a PNG file


def comparisons(experiment: Experiment) -> Iterator[Picture]:
    """Yield the comparisons of data sets that the table asks for."""
    for title, all_names in experiment.table["comparisons"].items():
        names = [name for name in all_names if name in experiment.data]
        if len(names) < 2:
            continue
        figure = draw_comparison(experiment, title, names)
        if figure is not None:
            caption = f"{title}: mean score relative to {experiment.baseline}; dots: pairs of runs."
            yield Picture(file_name("comparison", title), caption, as_png(figure, _DPI))
        for column in curve_columns(experiment, names[0]):
            smoothing = int(experiment.table["data"][names[0]]["smoothing"])
            drawn = draw_across(experiment, title, names, column, smoothing)
            if drawn is not None:
                caption = f"{title}: {metric_name(column, stage=True)} of {experiment.baseline}; {drawn.text}."
                yield Picture(file_name("across", f"{title}-{column}"), caption, as_png(drawn.figure, _DPI))


def diagnostics(experiment: Experiment) -> Iterator[Picture]:
    """Yield the curves of diagnostics."""
    for data in experiment.data:
        for column, title in _DIAGNOSTICS.items():
            drawn = draw_curves(experiment, data, column, title.partition(":")[0])
            if drawn is not None:
                name = file_name(column.rpartition("/")[2], data)
                yield Picture(name, f"{data}: {title}; {drawn.text}.", as_png(drawn.figure, _DPI))


def file_name(kind: str, name: str) -> str:
    """Return a name that every file system takes."""
    plain = "".join(character if character.isalnum() or character in ".-" else "_" for character in name)
    return f"{kind}-{plain}"[:_LONGEST]
