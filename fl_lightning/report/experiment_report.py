"""Writes the report of an experiment: one page, and each table and figure as a file."""

from __future__ import annotations

import json
import os
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fl_lightning.experiment.files import write_text
from fl_lightning.files import atomic_file
from fl_lightning.notebook import in_frame
from fl_lightning.report import figures, notes, tables
from fl_lightning.report.drawing import style_of_column
from fl_lightning.report.page import Section, Table, page
from fl_lightning.report.reference import reference_table
from fl_lightning.report.results import Results, read_results
from fl_lightning.report.texts import text
from fl_lightning.settings import PathLike, check
from fl_lightning.words import quantity


# `type(Path())` is the kind of path of this system.
class ReportPage(type(Path())):  # type: ignore[misc]
    """The path of a report's page, which a notebook shows."""

    def _repr_html_(self) -> str:
        return in_frame(self.read_text(encoding="utf-8"))


def experiment_report(results: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> ReportPage:
    """Write the report of an experiment and return the path of its page, which a notebook shows.

    The experiment may still be running: the report shows the runs that are finished. ``report.html`` holds everything.
    ``tables/*.csv``, ``tables/*.tex`` and ``figures/*`` are its parts. A figure is a PNG, a PDF and an SVG file that is
    as wide as the column of a paper. The files of an earlier report are replaced.

    Args:
        results: Folder that :func:`fl_lightning.experiment.run_table` has written.
        out: Folder of the report; ``report`` in ``results`` if ``None``.

    Raises:
        FileNotFoundError: If there are no results.
        ValueError: If no run is finished, or a file cannot be read.
    """
    check("`results`", results, PathLike)
    if out is not None:
        check("`out`", out, PathLike)
    read = read_results(results)
    folder = Path(results) / "report" if out is None else Path(out)
    with style_of_column():
        sections = list(_sections(read))
    # Some file systems do not tell A from a.
    taken: Counter[str] = Counter()
    for section in sections:
        for table in section.tables:
            write_text(folder / "tables" / f"{table.name}.csv", table.to_csv())
            write_text(folder / "tables" / f"{table.name}.tex", table.to_latex())
        for picture in section.pictures:
            key = picture.name.lower()
            taken[key] += 1
            name = picture.name if taken[key] == 1 else f"{picture.name}-{taken[key]}"
            for ending, content in picture.files.items():
                with atomic_file(folder / "figures" / f"{name}.{ending}") as temporary:
                    temporary.write_bytes(content)
    shown = page(str(read.table["name"]), sections, _summary(read), notes.warnings_of(read))
    write_text(folder / "report.html", shown)
    return ReportPage(folder / "report.html")


def scores_as_text(results: Path, width: int = 80) -> str:
    """Return the scores of an experiment, and what its reader must know, for a screen."""
    read = read_results(results)
    warnings = [textwrap.fill(sentence, width) for sentence in notes.warnings_of(read)]
    return "\n\n".join([tables.score_table(read).to_text(width), *warnings])


def _sections(results: Results) -> Iterator[Section]:
    scores = tables.score_table(results).turned_if_wide("method")
    made = _known(scores, tables.relative_table(results), tables.finished_table(results))
    yield Section("Scores", notes.open_cycles(results), made)
    made = _known(tables.significance_table(results), tables.rank_table(results))
    yield Section("Significance", " ".join(notes.power_sentences(results)), made)
    made = _known(tables.client_table(results))
    yield Section("Clients beside training alone", tables=made, pictures=list(figures.gains(results)))
    yield Section("Each client", tables=_known(tables.client_score_table(results)))
    made = _known(tables.paper_table(results), reference_table(results))
    yield Section("Beside the paper", tables=made)
    made = _known(tables.published_table(results))
    yield Section("Beside other groups", tables=made, pictures=list(figures.agreement(results)))
    yield Section("Validation curves", notes.missing_columns(results), pictures=list(figures.curves(results)))
    yield Section("Spread over runs", pictures=list(figures.spread(results)))
    yield Section("Comparisons of data sets", pictures=list(figures.comparisons(results)))
    yield Section("Distance and divergence", pictures=list(figures.diagnostics(results)))
    yield Section("Communication to target", tables=_known(tables.communication_table(results)))
    yield Section("Privacy", tables=_known(tables.privacy_table(results)))
    yield Section("Clients", pictures=list(figures.partitions(results)))
    yield Section("Chosen hyper-parameters", tables=_known(tables.tuning_table(results)))
    yield Section("Failed runs", tables=_known(tables.failed_table(results)))
    made = [tables.run_table(results), tables.version_table(results)]
    settings = {name: entry for name, entry in results.table.items() if name != "reference"}
    details = json.dumps(settings, indent=1, ensure_ascii=False)
    yield Section("Settings and versions", tables=made, details=details)


def _known(*made: Table | None) -> list[Table]:
    return [table for table in made if table is not None]


def _summary(results: Results) -> str:
    table = results.table
    counts = [
        quantity(len(table["methods"]), "method"),
        quantity(len(table["data"]), "data set"),
        quantity(len(table["folds"]), "fold"),
        quantity(len(table["seeds"]), "seed"),
    ]
    return text(
        "summary", results, counts, tables.dates_of(results), tables.time_of(results), notes.versions_of(results)
    )
