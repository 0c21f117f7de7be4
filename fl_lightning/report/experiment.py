"""The results of an experiment as a report reads them."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

Key = tuple[int, int]
"""Fold and seed of a run."""
Curve = dict[str, np.ndarray]
"""Columns of a run's curve by name, NaN where a round has no value."""


@dataclass(frozen=True)
class Experiment:
    """A folder that :func:`fl_lightning.experiment.run_table` has written.

    Attributes:
        folder: The folder.
        table: The table's settings.
        rows: The rows of ``results.csv``.
        tuning: The rows of ``tuning.csv``.
    """

    folder: Path
    table: dict[str, Any]
    rows: list[dict[str, str]]
    tuning: list[dict[str, str]] = field(default_factory=list)

    @cached_property
    def data(self) -> list[str]:
        """Data sets with a finished run, in the table's order."""
        return [name for name in self.table["data"] if any(self.runs(name, method) for method in self.table["methods"])]

    @cached_property
    def methods(self) -> list[str]:
        """Methods with a finished run, in the table's order."""
        return [name for name in self.table["methods"] if any(self.runs(data, name) for data in self.table["data"])]

    @property
    def baseline(self) -> str:
        """The method with which the others are compared."""
        return str(self.table["baseline"])

    def runs(self, data: str, method: str) -> dict[Key, dict[str, str]]:
        """Return the finished runs with a score, by fold and seed."""
        return {
            (int(row["fold"]), int(row["seed"])): row
            for row in self.rows
            if row["data"] == data and row["method"] == method and row["status"] == "finished" and row["score"]
        }

    def scores(self, data: str, method: str) -> dict[Key, float]:
        """Return the test scores, by fold and seed."""
        return {key: float(row["score"]) for key, row in self.runs(data, method).items()}

    def pairs(self, data: str, method: str) -> tuple[list[float], list[float]]:
        """Return the scores of a method and of the baseline in the runs that both have finished."""
        own, other = self.scores(data, method), self.scores(data, self.baseline)
        shared = sorted(set(own) & set(other))
        return [own[key] for key in shared], [other[key] for key in shared]

    def mode(self, data: str) -> str:
        """Return ``"max"`` if larger scores are better, else ``"min"``."""
        return str(self.table["data"][data]["mode"])

    @cached_property
    def percent(self) -> bool:
        """Whether scores are shares, which are shown in per cent."""
        scores = [
            score for data in self.data for method in self.methods for score in self.scores(data, method).values()
        ]
        return all(0 <= score <= 1 for score in scores)

    def curves(self, data: str, method: str) -> Iterator[Curve]:
        """Yield the curves of the finished runs."""
        for row in self.runs(data, method).values():
            if row["cell"] not in self._read:
                self._read[row["cell"]] = _curve(self.folder / "cells" / row["cell"] / "curve.csv")
            yield self._read[row["cell"]]

    @cached_property
    def _read(self) -> dict[str, Curve]:
        """The curves that were read; several figures need each."""
        return {}

    @property
    def failed(self) -> list[dict[str, str]]:
        """Rows of the runs that failed."""
        return [row for row in self.rows if row["status"] == "failed"]


def read_experiment(folder: str | os.PathLike[str]) -> Experiment:
    """Return the results in a folder.

    Raises:
        FileNotFoundError: If there are none.
        ValueError: If no run is finished.
    """
    folder = Path(folder)
    if not (folder / "results.csv").exists() or not (folder / "table.json").exists():
        raise FileNotFoundError(
            f"There are no results in {folder}: no results.csv and table.json. Give the `output` of "
            "python -m fl_lightning.experiment."
        )
    tuning = folder / "tuning.csv"
    experiment = Experiment(
        folder,
        json.loads((folder / "table.json").read_text(encoding="utf-8")),
        _rows(folder / "results.csv"),
        _rows(tuning) if tuning.exists() else [],
    )
    if not experiment.data:
        raise ValueError(f"No run in {folder} is finished with a score; results.csv says why not.")
    return experiment


def _curve(path: Path) -> Curve:
    import pandas as pd

    frame = pd.read_csv(path)
    return {str(name): frame[name].to_numpy(dtype=np.float64) for name in frame}


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
