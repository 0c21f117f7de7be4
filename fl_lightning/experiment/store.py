"""The folder with the results of an experiment."""

from __future__ import annotations

import json
import math
import os
import subprocess
import traceback
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fl_lightning.algorithms.versions import __version__
from fl_lightning.data import FederatedDataModule
from fl_lightning.experiment.claims import newest_claim, remove_claims
from fl_lightning.experiment.files import columns_of, read_json_if_there, remove_files, write_csv, write_json
from fl_lightning.experiment.plan import Cell
from fl_lightning.experiment.search import Point, Tried
from fl_lightning.experiment.table import Table
from fl_lightning.files import atomic_file
from fl_lightning.notebook import as_table
from fl_lightning.pictures import ENDINGS, content_of
from fl_lightning.words import quantity

Result = dict[str, Any]
_COLUMNS = ("data", "method", "fold", "seed", "values", "status", "score", "select", "val", "best_round", "rounds")
#: A notebook shows these columns, and test metrics.
_SHOWN = ("data", "method", "fold", "seed", "status", "score")


class Store:
    """The files of a table: a folder ``cells/<id>/`` for each fit, and tables of all fits.

    ``results.csv`` has one row for each cell of the table, in the order of the table. When a cell ends, it is written
    again from the files of the cells, and replaces the former one as a whole. So any number of runs may share a folder,
    and the file is the same in the end, whichever runner ran the cells. The format is CSV and not Parquet, because the
    file is small and can be read without any library.

    Args:
        folder: The folder; it is made when the first file is written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        # A cell may change the working folder.
        self.folder = Path(folder).absolute()
        self._results: dict[str, Result] = {}

    def cell_folder(self, cell: Cell) -> Path:
        """Return the folder of a cell."""
        return self.folder / "cells" / cell.id

    def result(self, cell: Cell) -> Result | None:
        """Return the result of a cell; ``None`` if it is not finished, or its file is damaged."""
        # A result never changes, so its file is read once.
        if cell.id not in self._results:
            result = read_json_if_there(self.cell_folder(cell) / "result.json")
            if result is None:
                return None
            self._results[cell.id] = result
        return self._results[cell.id]

    def failure(self, cell: Cell) -> dict[str, Any]:
        """Return the entries of a cell's last failure; none if it has not failed."""
        return read_json_if_there(self.cell_folder(cell) / "failed.json") or {}

    def remove_attempts(self, cell: Cell) -> None:
        """Remove what the attempts at a finished cell have left: checkpoints, curves, failures and claims."""
        folder = self.cell_folder(cell)
        remove_files(folder, "curve-*.jsonl", "last-*.ckpt", "best-*.ckpt", "failed.json")
        # A runner that was ended after it wrote the result has left its claim.
        remove_claims(folder)

    def failures(self) -> dict[str, int]:
        """Return how many attempts have failed at each cell that has failed, by its id."""
        failures = {}
        for path in self.folder.glob("cells/*/failed.json"):
            failure = read_json_if_there(path) or {}
            failures[path.parent.name] = failure.get("attempts", 0)
        return failures

    def state(self, cell: Cell) -> tuple[str, int]:
        """Return whether a cell is finished, running, failed or waiting, and how many of its rounds are behind it."""
        folder = self.cell_folder(cell)
        if self.result(cell) is not None:
            return "finished", cell.max_epochs
        claim = newest_claim(folder)
        if claim is None or claim.holder().get("released"):
            return ("failed", cell.max_epochs) if self.failure(cell) else ("waiting", 0)
        with suppress(FileNotFoundError):
            return "running", claim.file("curve.jsonl").read_bytes().count(b"\n")
        return "running", 0

    def write_table(self, table: Table, code: str) -> None:
        """Write the settings of the table and the version of the code to ``table.json``."""
        write_json(self.folder / "table.json", {"code": code, **asdict(table)})

    def write_results(self, table: Table, cells: Sequence[Cell]) -> list[dict[str, Any]]:
        """Write ``results.csv`` with the cells that are finished or failed, and return its rows."""
        rows = []
        for cell in cells:
            row = self._row(table, cell)
            if row is not None:
                rows.append(row)
        write_csv(self.folder / "results.csv", columns_of(rows, _COLUMNS), rows)
        return rows

    def _row(self, table: Table, cell: Cell) -> dict[str, Any] | None:
        """Return the row of a cell in ``results.csv``; ``None`` if it has neither finished nor failed."""
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
            failure = self.failure(cell)
            if not failure:
                return None
            return {**row, "status": "failed", "error": failure["error"]}
        score = table.data[cell.data].score
        row |= {key: value for key, value in result.items() if key not in ("test", "constant")}
        row |= {"status": "finished", "score": result["test"].get(score), "select": table.select}
        row |= result["test"]
        row["constant_score"] = result["constant"].get(score)
        return row

    def tried(self, point: Point, cells: Sequence[Cell]) -> Tried:
        """Return what came out of one point: its mean validation score, or why it has none."""
        finite: list[float] = []
        pruned: list[int] = []
        failures: list[str] = []
        infinite: list[str] = []
        for cell in cells:
            failure = self.failure(cell)
            if failure:
                failures.append(failure["error"])
            result = self.result(cell)
            if result is None:
                continue
            if result.get("pruned"):
                pruned.append(result["rounds"])
            if result["val"] is None:
                continue
            if math.isfinite(result["val"]):
                finite.append(result["val"])
            else:
                infinite.append(f"the validation metric is {result['val']}")
        # The first one is told.
        errors = [*failures, *infinite]
        if pruned:
            errors.append(f"pruned after {quantity(min(pruned), 'round')}")
        return Tried(
            point=point,
            fits=tuple(cell.id for cell in cells),
            finite=len(finite),
            score=sum(finite) / len(finite) if len(finite) == len(cells) else None,
            error=errors[0] if errors else "",
            pruned=min(pruned, default=0),
        )


class ResultRows(list[dict[str, Any]]):
    """The rows of a table's results, a dict for each cell; a notebook shows them as a table."""

    def __repr__(self) -> str:
        finished = sum(row.get("status") == "finished" for row in self)
        return f"ResultRows({len(self)} rows, {finished} finished; each row is a dict)"

    def _repr_html_(self) -> str:
        columns = columns_of(self, _COLUMNS)
        shown = [name for name in columns if name in _SHOWN or name.startswith("test_")]
        rows = []
        for row in self:
            rows.append([row.get(name, "") for name in shown])
        return as_table(rows, shown)


def describe_results(table: Table, rows: Sequence[Mapping[str, Any]], total: int, folder: Path) -> list[str]:
    """Return a line on how many cells of a table are finished, and one for each kind of trouble."""
    failed = sum(row["status"] == "failed" for row in rows)
    count = f"{len(rows) - failed} of {total} cells are finished"
    if failed:
        count += f", {failed} failed"
    lines = [f"{count}. Results: {folder / 'results.csv'}"]
    troubles: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        trouble = _trouble(row, table.data[row["data"]].score)
        if trouble:
            troubles[trouble].append(row)
    for trouble, found in troubles.items():
        place = "{data}, {method}, fold {fold}, seed {seed}".format(**found[0])
        if len(found) > 1:
            place += f" and {len(found) - 1} more"
        lines.append(f"{place}: {trouble}")
    return lines


def _trouble(row: Mapping[str, Any], score: str) -> str:
    """Return what is wrong with a row; the empty string if nothing is."""
    if row["status"] == "failed":
        return str(row["error"])
    if row["score"] is None:
        logged = ", ".join(sorted(name for name in row if name.startswith("test_"))) or "no metric of a test set"
        return f"`score` is {score!r}, but the cell logged {logged}. Correct `score`: nothing is run again."
    if not math.isfinite(row["score"]):
        return f"`{score}` is NaN or infinite, so no number of a report includes it. Lower the learning rate."
    if ", then " in row["code"]:
        return f"It ran under several versions of the code: {row['code']}."
    return ""


def write_failure(folder: Path, error: str, traceback: str = "") -> None:
    """Write the error of a cell that failed, and count the attempts that did.

    Args:
        folder: Folder of the cell.
        error: The error, in one line.
        traceback: Where it was raised.
    """
    path = folder / "failed.json"
    before = read_json_if_there(path) or {}
    write_json(path, {"error": error, "traceback": traceback, "attempts": before.get("attempts", 0) + 1})


def message_of(error: BaseException) -> str:
    """Return the kind of an error, its message and its notes in one line."""
    return " ".join("".join(traceback.format_exception_only(error)).split())


def partition_picture(results: str | os.PathLike[str], fingerprint: str) -> Path | None:
    """Return the path of the picture of a partition; ``None`` if there is none.

    Its name ends with the fold and the seed that it shows: folds share a partition, and differ in the clients that
    train, validate and test.

    Args:
        results: Folder of the experiment.
        fingerprint: Fingerprint of the partition.
    """
    found = (Path(results) / "partitions").glob(f"{fingerprint[:16]}-*.png")
    return min(found, default=None)


def draw_partition(results: str | os.PathLike[str], data: FederatedDataModule, cell: Cell) -> None:
    """Draw the partition of a data module, unless that is done; warn if that fails, because a result is worth more.

    Args:
        results: Folder of the experiment.
        data: The data module, ready for use.
        cell: The cell, for its fold and seed.
    """
    fingerprint = data.partition.fingerprint()
    if partition_picture(results, fingerprint) is not None:
        return
    picture = Path(results) / "partitions" / f"{fingerprint[:16]}-fold_{cell.fold}-seed_{cell.seed}.png"
    try:
        figure = data.plot().figure
        # The PNG file comes last: where it is, the others are.
        for ending in ENDINGS:
            with atomic_file(picture.with_suffix(f".{ending}")) as temporary:
                temporary.write_bytes(content_of(figure, ending, dpi=110, bbox_inches="tight"))
    except Exception as error:
        warnings.warn(f"The partition could not be drawn: {error}", stacklevel=2)


def code_version() -> str:
    """Return the version of the package, with the commit if it is a git checkout: ``0.1.0+g1a2b3c4d5e``.

    The version of a changed checkout ends with ``-dirty``.
    """
    # A package may be installed inside of another checkout.
    if not _git("ls-files", "--error-unmatch", "__init__.py"):
        return __version__
    return f"{__version__}+g{_git('describe', '--always', '--exclude=*', '--abbrev=10', '--dirty')}"


def _git(*arguments: str) -> str:
    """Return what a command of git prints about the folder of the package; empty if it fails."""
    command = ["git", "-C", str(Path(__file__).parents[1]), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
