"""Reads the results of an experiment for its report."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fl_lightning.experiment.files import read_csv, read_json
from fl_lightning.report.metric_names import is_share, metric_name

FoldAndSeed = tuple[int, int]
CurveColumns = dict[str, np.ndarray]
"""The columns of a run's ``curve.csv`` by name, each of shape (rounds,); NaN in rounds without a value."""


@dataclass(frozen=True)
class Experiment:
    """The results in a folder that :func:`fl_lightning.experiment.run_table` has written.

    Attributes:
        folder: The folder.
        table: The settings of the table.
        rows: The rows of ``results.csv``.
        tuning: The rows of ``tuning.csv``.
    """

    folder: Path
    table: dict[str, Any]
    rows: list[dict[str, str]]
    tuning: list[dict[str, str]] = field(default_factory=list)

    @cached_property
    def data(self) -> list[str]:
        """The data sets with a finished run, in the order of the table."""
        return [name for name in self.table["data"] if any(self.runs(name, method) for method in self.table["methods"])]

    @cached_property
    def methods(self) -> list[str]:
        """The methods with a finished run, in the order of the table."""
        return [name for name in self.table["methods"] if any(self.runs(data, name) for data in self.table["data"])]

    @property
    def baseline(self) -> str:
        """The method with which the report compares the others."""
        return str(self.table["baseline"])

    # ---- runs ----

    @property
    def num_expected(self) -> int:
        """Number of runs of each method on each data set."""
        return len(self.table["folds"]) * len(self.table["seeds"])

    @property
    def num_finished(self) -> int:
        """Number of all runs that are finished with a finite score."""
        return sum(len(self.runs(data, method)) for data in self.table["data"] for method in self.table["methods"])

    @property
    def failed(self) -> list[dict[str, str]]:
        """The rows of the failed runs."""
        return [row for row in self.rows if row["status"] == "failed"]

    @property
    def diverged(self) -> list[dict[str, str]]:
        """The rows of the finished runs whose score is NaN or infinite."""
        return [row for row in self.rows if _has_score(row) and not math.isfinite(float(row["score"]))]

    def runs(self, data: str, method: str) -> dict[FoldAndSeed, dict[str, str]]:
        """Return the finished runs that have a finite score, by fold and seed."""
        return {
            (int(row["fold"]), int(row["seed"])): row
            for row in self.rows
            if row["data"] == data
            and row["method"] == method
            and _has_score(row)
            and math.isfinite(float(row["score"]))
        }

    def runs_of(self, data: str) -> list[dict[str, str]]:
        """Return the finished runs of all methods on a data set."""
        return [row for method in self.methods for row in self.runs(data, method).values()]

    def about(self, row: dict[str, str]) -> dict[str, Any]:
        """Return times, device and versions of a finished run; empty if they are not known."""
        path = self.folder / "cells" / row.get("cell", "") / "run.json"
        try:
            content = read_json(path)
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    # ---- scores ----

    def scores(self, data: str, method: str) -> dict[FoldAndSeed, float]:
        """Return the test scores, by fold and seed."""
        return {key: float(row["score"]) for key, row in self.runs(data, method).items()}

    def pairs(self, data: str, method: str) -> tuple[list[float], list[float]]:
        """Return the scores of a method and of the baseline, for the folds and seeds that both have finished."""
        own, other = self.scores(data, method), self.scores(data, self.baseline)
        shared = sorted(set(own) & set(other))
        return [own[key] for key in shared], [other[key] for key in shared]

    def mode(self, data: str) -> str:
        """Return ``"max"`` if larger scores are better, else ``"min"``."""
        settings = self.table["data"][data]
        return str(settings.get("score_mode") or settings["mode"])

    def sign(self, data: str) -> int:
        """Return 1 if larger scores are better, else -1."""
        return 1 if self.mode(data) == "max" else -1

    def metric(self, data: str) -> str:
        """Return the name of the score for readers; data sets with the same name can be averaged."""
        return metric_name(str(self.table["data"][data]["score"]))

    def percent(self, data: str) -> bool:
        """Whether the scores of a data set are shares of 1; the report then shows them in per cent."""
        scores = [score for method in self.methods for score in self.scores(data, method).values()]
        return is_share(str(self.table["data"][data]["score"])) and all(0 <= score <= 1 for score in scores)

    def largest(self, data: str) -> float:
        """Return the size of the largest score of a data set."""
        scores = [score for method in self.methods for score in self.scores(data, method).values()]
        return max(map(abs, scores), default=0.0)

    # ---- curves ----

    def curves(self, data: str, method: str) -> Iterator[CurveColumns]:
        """Yield the curves of the finished runs.

        Raises:
            ValueError: If the file of a curve cannot be read.
        """
        for row in self.runs(data, method).values():
            if row["cell"] not in self._read:
                self._read[row["cell"]] = _curve(self.folder / "cells" / row["cell"] / "curve.csv")
            yield self._read[row["cell"]]

    @cached_property
    def _read(self) -> dict[str, CurveColumns]:
        """The curves read so far, by cell: several figures need the same curve."""
        return {}


def read_experiment(folder: str | os.PathLike[str]) -> Experiment:
    """Return the results in a folder.

    Raises:
        FileNotFoundError: If the folder has no results.
        ValueError: If no run is finished, or a file cannot be read.
    """
    folder = Path(folder)
    results, table, tuning = (folder / name for name in ("results.csv", "table.json", "tuning.csv"))
    if not results.exists() or not table.exists():
        raise FileNotFoundError(
            f"`results` must hold results.csv and table.json, and {folder} does not. Give the folder that "
            "`fl-lightning run` wrote, its `--output`."
        )
    rows = _rows_of(results)
    if not {"data", "method", "fold", "seed", "status", "score"} <= set(rows[0] if rows else ()):
        raise ValueError(f"{results} has no finished run. Run the table again; it writes the file anew.")
    for number, row in enumerate(rows, start=2):
        _check_row(results, number, row)
    try:
        settings = read_json(table)
    except ValueError as error:
        raise ValueError(f"{table} cannot be read ({error}). Run the table again; it writes the file anew.") from error
    experiment = Experiment(folder, settings, rows, _rows_of(tuning) if tuning.exists() else [])
    if not experiment.data and experiment.diverged:
        raise ValueError(
            f"No run in {folder} has a finite score: the score of every finished run is NaN or infinite. The models "
            "may have diverged: lower the learning rates in the table and run it again."
        )
    if not experiment.data:
        raise ValueError(
            f"No run in {folder} is finished with a score. The column `error` of results.csv says why, or `score` of "
            "the table is no test metric; correct the table and run it again."
        )
    return experiment


def _rows_of(path: Path) -> list[dict[str, str]]:
    try:
        return read_csv(path)
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Run the table again; it writes the file anew.") from error


def _has_score(row: dict[str, str]) -> bool:
    return row["status"] == "finished" and bool(row["score"])


def _check_row(path: Path, line: int, row: dict[str, str]) -> None:
    """Raise ``ValueError`` if the numbers of a finished run are none."""
    if row.get("status") != "finished":
        return
    for name, kind in (("fold", int), ("seed", int), ("score", float)):
        text = row.get(name) or ""
        try:
            kind(text or 0)
        except ValueError as error:
            raise ValueError(
                f"{path}, line {line}: `{name}` is {text!r}, which is not a number. Run the table again; it writes the "
                "file anew."
            ) from error


def _curve(path: Path) -> CurveColumns:
    import pandas as pd

    try:
        frame = pd.read_csv(path)
        return {str(name): frame[name].to_numpy(dtype=np.float64) for name in frame}
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}). Delete the folder {path.parent} and run the table again; it runs only "
            "this cell."
        ) from error


def settings_as_text(experiment: Experiment) -> str:
    """Return the settings of the table as a text; a table that it is compared with is not part of them."""
    shown = {name: entry for name, entry in experiment.table.items() if name != "reference"}
    return json.dumps(shown, indent=1, ensure_ascii=False)
