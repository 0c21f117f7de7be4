"""Writes the report of an experiment: one page, and each table and figure as a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fl_lightning.arguments import check_path
from fl_lightning.experiment.files import write_text
from fl_lightning.files import atomic_file
from fl_lightning.partitioners.notebook import in_frame
from fl_lightning.report.banner import finished_grid, open_cycles, warnings_of
from fl_lightning.report.communication import communication_grid
from fl_lightning.report.comparison import paper_grid, rank_grid, relative_grid, score_grid
from fl_lightning.report.experiment import Experiment, read_experiment, settings_as_text
from fl_lightning.report.figures import comparisons, curves, diagnostics, missing_columns, partitions, spread
from fl_lightning.report.pages import Grid, Page, Picture, Section
from fl_lightning.report.privacy import privacy_grid
from fl_lightning.report.reference import reference_grid
from fl_lightning.report.settings import (
    dates_of,
    failed_grid,
    run_grid,
    time_of,
    tuning_grid,
    version_grid,
    versions_of,
)
from fl_lightning.report.significance import power_sentences, significance_grid
from fl_lightning.representation import counted


class ReportPage(type(Path())):  # type: ignore[misc]  # the path of this system
    """The path of a report's page, which a notebook shows."""

    def _repr_html_(self) -> str:
        return in_frame(self.read_text(encoding="utf-8"))


def experiment_report(results: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> ReportPage:
    """Write the report of an experiment and return the path of its page, which a notebook shows.

    The experiment may still be running: the report shows the runs that are finished. ``report.html`` holds everything.
    ``figures/*.png``, ``tables/*.csv`` and ``tables/*.tex`` are its parts. The files of an earlier report are replaced.

    Args:
        results: Folder that :func:`fl_lightning.experiment.run_table` has written.
        out: Folder of the report; ``report`` in ``results`` if ``None``.

    Raises:
        FileNotFoundError: If there are no results.
        ValueError: If no run is finished, or a file cannot be read.
    """
    check_path("results", results)
    if out is not None:
        check_path("out", out)
    experiment = read_experiment(results)
    sections = _with_different_names(list(_sections(experiment)))
    folder = Path(results) / "report" if out is None else Path(out)
    for section in sections:
        for grid in section.grids:
            write_text(folder / "tables" / f"{grid.name}.csv", grid.to_csv())
            write_text(folder / "tables" / f"{grid.name}.tex", grid.to_latex())
        for picture in section.pictures:
            with atomic_file(folder / "figures" / f"{picture.name}.png") as temporary:
                temporary.write_bytes(picture.png)
    page = Page(str(experiment.table["name"]), sections, _summary(experiment), warnings_of(experiment))
    write_text(folder / "report.html", page.to_html())
    return ReportPage(folder / "report.html")


def _sections(experiment: Experiment) -> Iterator[Section]:
    yield Section(
        "Scores",
        open_cycles(experiment),
        grids=_known(score_grid(experiment), relative_grid(experiment), finished_grid(experiment)),
    )
    yield Section(
        "Significance",
        " ".join(power_sentences(experiment)),
        grids=_known(significance_grid(experiment), rank_grid(experiment)),
    )
    yield Section("Beside the paper", grids=_known(paper_grid(experiment), reference_grid(experiment)))
    yield Section("Validation curves", missing_columns(experiment), pictures=list(curves(experiment)))
    yield Section("Spread over runs", pictures=list(spread(experiment)))
    yield Section("Comparisons of data sets", pictures=list(comparisons(experiment)))
    yield Section("Distance and divergence", pictures=list(diagnostics(experiment)))
    yield Section("Communication to target", grids=_known(communication_grid(experiment)))
    yield Section("Privacy", grids=_known(privacy_grid(experiment)))
    yield Section("Clients", pictures=list(partitions(experiment)))
    yield Section("Chosen hyper-parameters", grids=_known(tuning_grid(experiment)))
    yield Section("Failed runs", grids=_known(failed_grid(experiment)))
    yield Section(
        "Settings and versions",
        grids=[run_grid(experiment), version_grid(experiment)],
        details={"Settings of the table": settings_as_text(experiment)},
    )


def _with_different_names(sections: Sequence[Section]) -> list[Section]:
    """Return the sections with another file name for each figure; some file systems do not tell A from a."""
    taken: set[str] = set()

    def renamed(picture: Picture) -> Picture:
        name, number = picture.name, 1
        while name.lower() in taken:
            number += 1
            name = f"{picture.name}-{number}"
        taken.add(name.lower())
        return replace(picture, name=name)

    return [replace(section, pictures=[renamed(picture) for picture in section.pictures]) for section in sections]


def _summary(experiment: Experiment) -> str:
    table = experiment.table
    expected = experiment.num_expected * len(table["data"]) * len(table["methods"])
    dates, time = dates_of(experiment), time_of(experiment)
    return (
        f"{counted(len(table['methods']), 'method')}, {counted(len(table['data']), 'data set')}, "
        f"{counted(len(table['folds']), 'fold')}, {counted(len(table['seeds']), 'seed')}: "
        f"{experiment.num_finished:,} of {expected:,} runs have a score"
        + (f", {dates}" if dates else "")
        + (f"; all fits took {time}" if time else "")
        + f". Tested: {_selected(table['select'])}. Code {' and '.join(versions_of(experiment))}."
    )


def _selected(select: str) -> str:
    return {
        "aggregated": "the aggregated model of each run that is best on validation",
        "virtual": "the model of each run that is best on validation, means between aggregations included",
        "last": "the last model of each run",
    }[select]


def _known(*grids: Grid | None) -> list[Grid]:
    return [grid for grid in grids if grid is not None]
