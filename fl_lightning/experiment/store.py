"""The folder with the results of an experiment."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any

from fl_lightning.experiment.cell import CellJob, Result, clear, read_result
from fl_lightning.experiment.damage import DamagedFileError, Note, put_aside, read_content
from fl_lightning.experiment.files import columns_of, read_csv, write_csv, write_json
from fl_lightning.experiment.lock import Lock, locked
from fl_lightning.experiment.plan import Cell
from fl_lightning.experiment.search import Point
from fl_lightning.experiment.table import Table
from fl_lightning.representation import counted

_COLUMNS = ("data", "method", "fold", "seed", "values", "status", "score", "val", "best_round", "rounds")
_HEADER = "Traceback (most recent call last):"
_TUNING = ("data", "method", "point", "values", "val", "fits", "chosen", "error")


class Store:
    """The files of a table: a folder ``cells/<id>/`` for each fit, and tables of all fits.

    ``results.csv`` has one row for each cell of the table, in the order of the table. It is written anew from the files
    of the cells when a cell ends, and replaces the former one as a whole. So it is never half written, and a run that
    was killed and resumed ends with the same file as a run that was not. The format is CSV and not Parquet, because the
    file is small and can be read without any library.

    Args:
        folder: The folder; it is made when the first file is written.
        note: Takes a line for the user about a damaged file.
    """

    def __init__(self, folder: str | os.PathLike[str], note: Note = lambda text: None) -> None:
        self.folder = Path(folder).absolute()  # a cell may change the working folder
        self.note = note
        self._mine = False
        self._results: dict[str, Result] = {}
        self._damaged: set[Path] = set()

    @contextlib.contextmanager
    def locked(self, patience: float = 10.0) -> Iterator[Lock | None]:
        """Keep other runs out of the folder; yield its lock, ``None`` on systems without file locks.

        Inside, damaged files are put aside. Workers that inherit the lock hold it too, so that after a kill the next
        run waits until they have ended.

        Raises:
            RuntimeError: If another run still holds the folder after ``patience`` seconds.
        """
        with locked(self.folder, patience) as lock:
            self._mine = True
            try:
                yield lock
            finally:
                self._mine = False

    def cell_folder(self, cell: Cell) -> Path:
        """Return the folder of a cell."""
        return self.folder / "cells" / cell.id

    def job(self, cell: Cell, wandb: Mapping[str, Any], checkpoint_seconds: float) -> CellJob:
        """Return the job that runs a cell."""
        labels = {"data": cell.data, "method": cell.method, "fold": cell.fold, "seed": cell.seed, "values": cell.values}
        folders = str(self.cell_folder(cell)), str(self.folder)
        return CellJob(cell.config, folders[0], labels, dict(wandb), checkpoint_seconds, folders[1])

    def result(self, cell: Cell) -> Result | None:
        """Return the result of a cell; ``None`` if it is not finished, or its file is damaged."""
        if cell.id in self._results:  # a result never changes
            return self._results[cell.id]
        folder = self.cell_folder(cell)
        try:
            result = read_result(folder)
        except DamagedFileError as damage:
            self._report(damage, "the cell is run again")
            return None
        if result is not None:
            if self._mine:
                clear(folder)  # the run may have been killed after it wrote the result and before it cleared the folder
            self._results[cell.id] = result
        return result

    def seconds(self, cell: Cell) -> float | None:
        """Return the duration of a finished cell; ``None`` if it is not known."""
        content = self._optional(cell, "run.json", {"seconds"})
        return None if content is None else float(content["seconds"])

    def fail(self, cell: Cell, error: str) -> None:
        """Write the traceback of a cell that failed; the next run tries the cell again."""
        write_json(self.cell_folder(cell) / "failed.json", {"error": error})

    def error(self, cell: Cell) -> str | None:
        """Return the traceback of a cell that failed; ``None`` if it did not."""
        content = self._optional(cell, "failed.json", {"error"})
        return None if content is None else str(content["error"])

    def _optional(self, cell: Cell, name: str, keys: set[str]) -> dict[str, Any] | None:
        path = self.cell_folder(cell) / name
        try:
            return read_content(path, keys) if path.exists() else None
        except DamagedFileError as damage:
            self._report(damage, "nothing else depends on it")
            return None

    def _report(self, damage: DamagedFileError, consequence: str) -> None:
        """Tell the user of a damaged file, once, and put it aside if this run holds the folder."""
        if self._mine:
            self.note(f"{damage}; it is now {put_aside(damage.path).name}, and {consequence}.")
        elif damage.path not in self._damaged:
            self.note(f"{damage}. A run will put it aside, and {consequence}.")
        self._damaged.add(damage.path)

    def write_table(self, table: Table, code: str) -> None:
        """Write the settings of the table and the version of the code to ``table.json``."""
        write_json(self.folder / "table.json", {"code": code, **asdict(table)})

    def write_results(self, table: Table, cells: Sequence[Cell]) -> list[dict[str, Any]]:
        """Write ``results.csv`` with the cells that are finished or failed, and return its rows."""
        rows = [row for cell in cells if (row := self._row(table, cell)) is not None]
        write_csv(self.folder / "results.csv", columns_of(rows, _COLUMNS), rows)
        return rows

    def rows_of_others(self, cells: Sequence[Cell]) -> int:
        """Return how many finished cells of ``results.csv`` are not among these; 0 if it cannot be read."""
        try:
            rows = read_csv(self.folder / "results.csv")
        except (OSError, ValueError, csv.Error):  # it is written anew in any case
            return 0
        own = {cell.id for cell in cells}
        return sum(row.get("status") == "finished" and row.get("cell") not in own for row in rows)

    def _row(self, table: Table, cell: Cell) -> dict[str, Any] | None:
        row = {
            "data": cell.data,
            "method": cell.method,
            "fold": cell.fold,
            "seed": cell.seed,
            "values": json.dumps(cell.values, sort_keys=True),
            "cell": cell.id,
        }
        result, error = self.result(cell), self.error(cell)
        if result is None:
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

    def tuning_row(self, data: str, method: str, number: int, point: Point, cells: Sequence[Cell]) -> dict[str, Any]:
        """Return the row of one point: its mean validation score, or the error of one of its cells."""
        results = [self.result(cell) for cell in cells]
        values = [result["val"] for result in results if result is not None and result["val"] is not None]
        known = [value for value in values if math.isfinite(value)]
        errors = [message_of(error) for cell in cells if (error := self.error(cell)) is not None]
        errors += [f"the validation metric is {value}" for value in values if not math.isfinite(value)]
        whole = len(known) == len(cells)
        return {
            "data": data,
            "method": method,
            "point": number,
            "values": json.dumps(point, sort_keys=True),
            "val": sum(known) / len(known) if whole else None,
            "fits": len(known),
            "chosen": "",
            "error": errors[0] if errors else "",
        }


def message_of(error: str) -> str:
    """Return the error of a traceback in one line: its kind and its whole message, also where that has several lines.

    A text without a traceback is a message already.
    """
    _, _, last = error.rpartition(_HEADER)
    lines = last.strip("\n").splitlines()
    calls = takewhile(lambda line: line.startswith("  "), lines)  # indented, as the message is not
    return " ".join(" ".join(lines[len(list(calls)) :]).split())
