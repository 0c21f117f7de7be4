"""Writes the report of an experiment: one page, and each table and figure as a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fl_lightning.atomic_file import atomic_file
from fl_lightning.experiment.files import write_text
from fl_lightning.experiment.search import describe_point
from fl_lightning.report.communication import communication_grid
from fl_lightning.report.comparison import paper_grid, rank_grid, relative_grid, score_grid, significance_grid
from fl_lightning.report.curves import draw_across, draw_comparison, draw_curves, draw_spread, representative_fold
from fl_lightning.report.experiment import Experiment, read_experiment
from fl_lightning.report.pages import Grid, Page, Picture, Section, as_png

_DPI = 130
_DIAGNOSTICS = {
    "fed/central_distance": "DC: relative distance to the central model",
    "fed/divergence": "DL: mean pairwise cosine divergence of local models",
}


def experiment_report(results: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Write the report of an experiment and return the path of its page.

    The experiment may still be running: the report shows the runs that are finished. ``report.html`` holds everything.
    ``figures/*.png``, ``tables/*.csv`` and ``tables/*.tex`` are its parts. The files of an earlier report are replaced.

    Args:
        results: Folder that :func:`fl_lightning.experiment.run_table` has written.
        out: Folder of the report; ``report`` in ``results`` if ``None``.

    Raises:
        FileNotFoundError: If there are no results.
        ValueError: If no run is finished.
    """
    experiment = read_experiment(results)
    sections = list(_sections(experiment))
    folder = Path(results) / "report" if out is None else Path(out)
    for section in sections:
        for grid in section.grids:
            write_text(folder / "tables" / f"{grid.name}.csv", grid.to_csv())
            write_text(folder / "tables" / f"{grid.name}.tex", grid.to_latex())
        for picture in section.pictures:
            with atomic_file(folder / "figures" / f"{picture.name}.png") as temporary:
                temporary.write_bytes(picture.png)
    page = Page(str(experiment.table["name"]), sections, _summary(experiment), _warnings(experiment))
    write_text(folder / "report.html", page.to_html())
    return folder / "report.html"


def _sections(experiment: Experiment) -> Iterator[Section]:
    yield Section("Scores", grids=_known(score_grid(experiment), relative_grid(experiment)))
    yield Section("Significance", grids=_known(significance_grid(experiment), rank_grid(experiment)))
    yield Section("Beside the paper", grids=_known(paper_grid(experiment)))
    yield Section("Validation curves", pictures=list(_curves(experiment)))
    yield Section("Spread over runs", pictures=list(_spread(experiment)))
    yield Section("Comparisons of data sets", pictures=list(_comparisons(experiment)))
    yield Section("Distance and divergence", pictures=list(_diagnostics(experiment)))
    yield Section("Communication to target", grids=_known(communication_grid(experiment)))
    yield Section("Chosen hyper-parameters", grids=_known(_tuning_grid(experiment)))
    yield Section("Failed runs", grids=_known(_failed_grid(experiment)))
    yield Section(
        "Settings and versions",
        grids=[_run_grid(experiment)],
        details={"Settings of the table": json.dumps(experiment.table, indent=1, ensure_ascii=False)},
    )


def _curves(experiment: Experiment) -> Iterator[Picture]:
    for data in experiment.data:
        settings = experiment.table["data"][data]
        interval = int(settings["smoothing"])
        of = "the test set" if settings["validate_on_test"] else "validation"
        smoothed = f", means over {interval} validations" if interval > 1 else ""
        for column in settings["curves"] or [settings["monitor"]]:
            figure = draw_curves(experiment, data, column, column, interval)
            if figure is not None:
                caption = f"{data}: {column} on {of}{smoothed}; line: mean over runs, band: ± one sd."
                yield Picture(_file_name("curve", f"{data}-{column}"), caption, as_png(figure, _DPI))


def _spread(experiment: Experiment) -> Iterator[Picture]:
    for data in experiment.data:
        if max(len(experiment.scores(data, method)) for method in experiment.methods) < 2:
            continue
        fold = representative_fold(experiment, data)
        shown = f"; in full colour fold {fold}, whose gap is nearest to the mean gap" if fold is not None else ""
        caption = f"{data}: test score of each run (the shape of a mark is its fold{shown}); line: mean."
        yield Picture(_file_name("spread", data), caption, as_png(draw_spread(experiment, data), _DPI))


def _comparisons(experiment: Experiment) -> Iterator[Picture]:
    for title, all_names in experiment.table["comparisons"].items():
        names = [name for name in all_names if name in experiment.data]
        if len(names) < 2:
            continue
        figure = draw_comparison(experiment, title, names)
        if figure is not None:
            caption = f"{title}: mean score relative to {experiment.baseline}."
            yield Picture(_file_name("comparison", title), caption, as_png(figure, _DPI))
        settings = experiment.table["data"][names[0]]
        for column in settings["curves"] or [settings["monitor"]]:
            figure = draw_across(experiment, title, names, column, int(settings["smoothing"]))
            if figure is not None:
                caption = f"{title}: {column} of {experiment.baseline}; line: mean over runs, band: ± one sd."
                yield Picture(_file_name("across", f"{title}-{column}"), caption, as_png(figure, _DPI))


def _diagnostics(experiment: Experiment) -> Iterator[Picture]:
    for data in experiment.data:
        for column, label in _DIAGNOSTICS.items():
            figure = draw_curves(experiment, data, column, label.partition(":")[0])
            if figure is not None:
                name = _file_name(column.rpartition("/")[2], data)
                yield Picture(name, f"{data}: {label}; line: mean over runs, band: ± one sd.", as_png(figure, _DPI))


def _tuning_grid(experiment: Experiment) -> Grid | None:
    points: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in experiment.tuning:
        points.setdefault((row["data"], row["method"]), []).append(row)
    rows = []
    for (data, method), tried in points.items():
        chosen = next((row for row in tried if row["chosen"]), None)
        if chosen is not None:
            score = f"{float(chosen['val']):.4f}" if chosen["val"] else "none"
            failed = sum(not row["val"] for row in tried)
            rows.append([data, method, _values(chosen["values"]), score, str(len(tried)), str(failed or "")])
    if not rows:
        return None
    caption = "Values chosen on validation, and the number of points that were tried."
    header = ["data", "method", "chosen", "validation", "points", "failed"]
    return Grid("tuning", caption, header, rows, text_columns=(0, 1, 2), note="tuning.csv lists all points.")


def _failed_grid(experiment: Experiment) -> Grid | None:
    rows = [[row["data"], row["method"], row["fold"], row["seed"], row["error"]] for row in experiment.failed]
    if not rows:
        return None
    note = "cells/<id>/failed.json has the traceback."
    header = ["data", "method", "fold", "seed", "error"]
    return Grid("failed", "Runs that failed.", header, rows, text_columns=(0, 1, 4), note=note)


def _run_grid(experiment: Experiment) -> Grid:
    rows = []
    for data in experiment.data:
        runs = [row for method in experiment.methods for row in experiment.runs(data, method).values()]
        settings = experiment.table["data"][data]
        rows.append(
            [
                data,
                settings["datamodule"]["class_path"].rpartition(".")[2],
                settings["model"]["class_path"].rpartition(".")[2],
                str(len(runs)),
                ", ".join(sorted({row["rounds"] for row in runs}, key=int)),
                f"{settings['score']}, by {settings['monitor']}",
                ", ".join(sorted({row["partition"][:8] for row in runs})),
                ", ".join(sorted({row["code"] for row in runs})),
            ]
        )
    header = ["data", "data module", "model", "runs", "rounds", "score", "partitions", "code"]
    note = "Partitions: the first digits of their fingerprints. Code: version and commit."
    return Grid("runs", "Runs of each data set.", header, rows, text_columns=(0, 1, 2, 5, 6, 7), note=note)


def _summary(experiment: Experiment) -> str:
    finished = sum(row["status"] == "finished" for row in experiment.rows)
    table = experiment.table
    expected = len(table["data"]) * len(table["methods"]) * len(table["folds"]) * len(table["seeds"])
    return (
        f"{_count(experiment.methods, 'method')}, {_count(experiment.data, 'data set')}, "
        f"{_count(table['folds'], 'fold')}, {_count(table['seeds'], 'seed')}: "
        f"{finished} of {expected} runs finished. "
        f"Tested: {_selected(table['select'])}. Code {table['code']}."
    )


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}" + ("" if len(things) == 1 else "s")


def _selected(select: str) -> str:
    return {
        "aggregated": "the aggregated model of each run that is best on validation",
        "virtual": "the model of each run that is best on validation, means between aggregations included",
        "last": "the last model of each run",
    }[select]


def _warnings(experiment: Experiment) -> list[str]:
    stand_ins: dict[str, list[str]] = {}
    for data in experiment.data:
        if text := experiment.table["data"][data]["stand_in"]:
            stand_ins.setdefault(text, []).append(data)
    warnings = [f"Stand-in data: {', '.join(names)}. {text}" for text, names in stand_ins.items()]
    on_test = [data for data in experiment.data if experiment.table["data"][data]["validate_on_test"]]
    if on_test:
        which = "all data sets" if len(on_test) == len(experiment.data) else ", ".join(on_test)
        warnings.append(f"The curves of {which} are of the test set, as in the paper.")
    if experiment.failed:
        warnings.append(
            f"Runs that failed: {len(experiment.failed)}. They are listed below, and no number includes them."
        )
    return warnings


def _known(*grids: Grid | None) -> list[Grid]:
    return [grid for grid in grids if grid is not None]


def _values(text: str) -> str:
    return describe_point(json.loads(text))


def _file_name(kind: str, name: str) -> str:
    return kind + "-" + "".join(character if character.isalnum() or character in ".-" else "_" for character in name)
