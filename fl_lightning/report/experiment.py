"""Reads the results of an experiment for its report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fl_lightning.experiment.files import read_csv

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

    def runs(self, data: str, method: str) -> dict[FoldAndSeed, dict[str, str]]:
        """Return the finished runs that have a score, by fold and seed."""
        return {
            (int(row["fold"]), int(row["seed"])): row
            for row in self.rows
            if row["data"] == data and row["method"] == method and row["status"] == "finished" and row["score"]
        }

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
        return str(self.table["data"][data]["mode"])

    @cached_property
    def percent(self) -> bool:
        """Whether all scores lie between 0 and 1; the report then shows them in per cent."""
        scores = [
            score for data in self.data for method in self.methods for score in self.scores(data, method).values()
        ]
        return all(0 <= score <= 1 for score in scores)

    def curves(self, data: str, method: str) -> Iterator[CurveColumns]:
        """Yield the curves of the finished runs."""
        for row in self.runs(data, method).values():
            if row["cell"] not in self._read:
                self._read[row["cell"]] = _curve(self.folder / "cells" / row["cell"] / "curve.csv")
            yield self._read[row["cell"]]

    @cached_property
    def _read(self) -> dict[str, CurveColumns]:
        """The curves read so far, by cell: several figures need the same curve."""
        return {}

    @property
    def failed(self) -> list[dict[str, str]]:
        """The rows of the failed runs."""
        return [row for row in self.rows if row["status"] == "failed"]


def read_experiment(folder: str | os.PathLike[str]) -> Experiment:
    """Return the results in a folder.

    Raises:
        FileNotFoundError: If the folder has no results.
        ValueError: If no run is finished.
    """
    folder = Path(folder)
    if not (folder / "results.csv").exists() or not (folder / "table.json").exists():
        raise FileNotFoundError(
            f"There are no results in {folder}: it must hold results.csv and table.json. Give the folder that "
            "python -m fl_lightning.experiment has written, its `--output`."
        )
    tuning = folder / "tuning.csv"
    experiment = Experiment(
        folder,
        json.loads((folder / "table.json").read_text(encoding="utf-8")),
        read_csv(folder / "results.csv"),
        read_csv(tuning) if tuning.exists() else [],
    )
    if not experiment.data:
        raise ValueError(
            f"No run in {folder} is finished with a score. The column `error` of results.csv says why; mend the table "
            "and run it again."
        )
    return experiment


def _curve(path: Path) -> CurveColumns:
    import pandas as pd

    frame = pd.read_csv(path)
    return {str(name): frame[name].to_numpy(dtype=np.float64) for name in frame}
