"""The folder with the results of an experiment."""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any

from fl_lightning.checks import counted
from fl_lightning.experiment.cell import Result
from fl_lightning.experiment.files import columns_of, read_json_if_there, write_csv, write_json
from fl_lightning.experiment.plan import Cell
from fl_lightning.experiment.search import Point, Tried
from fl_lightning.experiment.table import Table

CLAIM = "claim"
"""File in a cell's folder: the lease of the process that runs the cell."""
_COLUMNS = ("data", "method", "fold", "seed", "values", "status", "score", "val", "best_round", "rounds")
_HEADER = "Traceback (most recent call last):"
_TUNING = ("data", "method", "point", "values", "val", "fits", "chosen", "error")


class Store:
    """The files of a table: a folder ``cells/<id>/`` for each fit, and tables of all fits.

    ``results.csv`` has one row for each cell of the table, in the order of the table. It is written anew from the files
    of the cells when a cell ends, and replaces the former one as a whole. So any number of runs may share a folder, and
    whoever ran the cells, the file is the same in the end. The format is CSV and not Parquet, because the file is small
    and can be read without any library.

    Args:
        folder: The folder; it is made when the first file is written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()  # a cell may change the working folder
        self._results: dict[str, Result] = {}

    def cell_folder(self, cell: Cell) -> Path:
        """Return the folder of a cell."""
        return self.folder / "cells" / cell.id

    def result(self, cell: Cell) -> Result | None:
        """Return the result of a cell; ``None`` if it is not finished, or its file is damaged."""
        if cell.id not in self._results:  # a result never changes
            result = read_json_if_there(self.cell_folder(cell) / "result.json")
            if result is None:
                return None
            self._results[cell.id] = result
        return self._results[cell.id]

    def error(self, cell: Cell) -> str | None:
        """Return the traceback of a cell that failed; ``None`` if it did not."""
        failure = read_json_if_there(self.cell_folder(cell) / "failed.json")
        return None if failure is None else str(failure["error"])

    def failures(self, cell: Cell, since: float) -> int:
        """Return how many attempts at a cell have failed since a time of the clock, whoever ran them."""
        return failures(self.cell_folder(cell), since)

    def rounds(self, cell: Cell) -> int | None:
        """Return how many rounds a cell at work has finished; ``None`` if no process has claimed it."""
        folder = self.cell_folder(cell)
        try:
            return (folder / "curve.jsonl").read_bytes().count(b"\n") if (folder / CLAIM).exists() else None
        except FileNotFoundError:
            return 0

    def write_table(self, table: Table, code: str) -> None:
        """Write the settings of the table and the version of the code to ``table.json``."""
        write_json(self.folder / "table.json", {"code": code, **asdict(table)})

    def write_results(self, table: Table, cells: Sequence[Cell]) -> list[dict[str, Any]]:
        """Write ``results.csv`` with the cells that are finished or failed, and return its rows."""
        rows = [row for cell in cells if (row := self._row(table, cell)) is not None]
        write_csv(self.folder / "results.csv", columns_of(rows, _COLUMNS), rows)
        return rows

    def _row(self, table: Table, cell: Cell) -> dict[str, Any] | None:
        row = {
            "data": cell.data,
            "method": cell.method,
            "fold": cell.fold,
            "seed": cell.seed,
            "values": json.dumps(cell.values, sort_keys=True),
            "cell": cell.id,
        }
        result = self.result(cell)
        if result is None:
            error = self.error(cell)
            return None if error is None else {**row, "status": "failed", "error": message_of(error)}
        score = table.data[cell.data].score
        row |= {key: value for key, value in result.items() if key not in ("test", "constant")}
        row |= {"status": "finished", "score": result["test"].get(score), **result["test"]}
        return {**row, "constant_score": result.get("constant", {}).get(score)}

    def why_unscored(self, table: Table, cell: Cell) -> str | None:
        """Return a sentence if a finished cell has not logged the score of its data set; else ``None``."""
        result, score = self.result(cell), table.data[cell.data].score
        if result is None or score in result["test"]:
            return None
        logged = ", ".join(sorted(result["test"])) or "nothing, because there is no test set"
        return (
            f"{cell.data}: `score` is {score!r}, but {cell.method} logged {logged}. Correct `score` in the table; "
            "finished cells are not run again."
        )

    def diverged(self, table: Table, cells: Sequence[Cell]) -> list[str]:
        """Return a sentence for each data set and method with cells whose score is NaN or infinite."""
        counts: Counter[tuple[str, str]] = Counter()
        for cell in cells:
            result = self.result(cell)
            score = None if result is None else result["test"].get(table.data[cell.data].score)
            counts[cell.data, cell.method] += score is not None and not math.isfinite(score)
        return [
            f"{method} on {data}: `{table.data[data].score}` is NaN or infinite in {counted(number, 'cell')}. "
            "Reports list these, and no number includes them. The model may have diverged: lower the learning rate."
            for (data, method), number in counts.items()
            if number
        ]

    def write_tuning(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write ``tuning.csv``: all points that were tried, and which one was chosen."""
        write_csv(self.folder / "tuning.csv", _TUNING, rows)

    def tried(self, point: Point, cells: Sequence[Cell]) -> Tried:
        """Return what came out of one point: its mean validation score, or why it has none."""
        results = [result for cell in cells if (result := self.result(cell)) is not None]
        values = [result["val"] for result in results if result["val"] is not None]
        known = [value for value in values if math.isfinite(value)]
        errors = [message_of(error) for cell in cells if (error := self.error(cell)) is not None]
        errors += [f"the validation metric is {value}" for value in values if not math.isfinite(value)]
        pruned = min((result["rounds"] for result in results if result.get("pruned")), default=0)
        if pruned:
            errors.append(f"pruned after {counted(pruned, 'round')}")
        score = sum(known) / len(known) if len(known) == len(cells) else None
        return Tried(point, tuple(cell.id for cell in cells), len(known), score, errors[0] if errors else "", pruned)


def failures(folder: Path, since: float) -> int:
    """Return how many attempts at the cell of a folder have failed since a time of the clock."""
    failure = read_json_if_there(folder / "failed.json")
    return failure["attempts"] if failure is not None and failure["time"] >= since else 0


def write_failure(folder: Path, error: str, since: float) -> None:
    """Write the traceback of a cell that failed.

    All runs on a folder count the attempts together. A later run tries the cell again.

    Args:
        folder: Folder of the cell.
        error: The traceback.
        since: When the run began; attempts before do not count.
    """
    attempts = failures(folder, since) + 1
    write_json(folder / "failed.json", {"error": error, "attempts": attempts, "time": time.time()})


def message_of(error: str) -> str:
    """Return the error of a traceback in one line: its kind and its whole message, also where that has several lines.

    A text without a traceback is a message already.
    """
    _, _, last = error.rpartition(_HEADER)
    lines = last.strip("\n").splitlines()
    calls = takewhile(lambda line: line.startswith("  "), lines)  # indented, as the message is not
    return " ".join(" ".join(lines[len(list(calls)) :]).split())
