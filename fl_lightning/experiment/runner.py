"""Runs a table: searches hyper-parameters on validation clients, then fits and tests every cell."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from rich.console import Console

from fl_lightning.arguments import check_count, check_instance, check_not_negative, check_path, check_sizes
from fl_lightning.experiment.check import refuse_mistakes
from fl_lightning.experiment.code_version import code_version
from fl_lightning.experiment.plan import Cell, levels, planned, table_cells, tuning_cells, tuning_points
from fl_lightning.experiment.pool import Limits, Pool
from fl_lightning.experiment.progress import Progress, describe_cell, say
from fl_lightning.experiment.result_rows import ResultRows
from fl_lightning.experiment.search import Point, describe_point, note_of_equals
from fl_lightning.experiment.store import Store, message_of
from fl_lightning.experiment.table import Table
from fl_lightning.experiment.table_file import check_source, read_table
from fl_lightning.files import make_folder
from fl_lightning.representation import counted


def run_table(
    table: str | os.PathLike[str] | Mapping[str, Any] | Table,
    output: str | os.PathLike[str] | None = None,
    *,
    workers: int = 1,
    devices: Sequence[int] | None = None,
    checkpoint_seconds: float = 60.0,
    cell_timeout: float | None = None,
    retries: int = 0,
    memory_limit: float | None = None,
    console: Console | None = None,
) -> ResultRows:
    """Run the cells of a table that are not finished, and return the rows of its ``results.csv``.

    The hyper-parameters of methods with a ``tune`` are searched first, on validation clients. Then each cell is one
    ``Trainer.fit`` and a test of its best model. Fits of the same data set, fold and seed share partition, initial
    weights and draws of clients (common random numbers).

    Before any work, the objects of every cell are built without data, and all mistakes of the table are named at once.

    The id of a cell is the hash of its configuration, and a finished cell is never run again. An interrupted run
    continues from the last checkpoint of each cell. If a cell fails, its traceback is kept, the other cells run on, and
    the next run tries the cell again. A damaged file of a cell is renamed, with a message, and the cell starts again.

    Args:
        table: A YAML file, a mapping with the same content, or a :class:`~fl_lightning.experiment.Table`.
        output: Folder of the results; ``runs/<name of the table>`` if ``None``.
        workers: Number of processes, each with one thread (or ``OMP_NUM_THREADS``); 0 runs all cells in this process.
        devices: Numbers of the GPUs that the workers share; ``None`` leaves the choice to each Trainer.
        checkpoint_seconds: Time between two checkpoints from which a killed fit resumes.
        cell_timeout: Seconds after which an attempt at a cell fails, without the start of its process. A further
            attempt continues from its last checkpoint. ``None`` sets no limit.
        retries: Further attempts at a cell that failed, after the other cells.
        memory_limit: Gigabytes of main memory that a worker may allocate, about one of which the libraries take;
            ``None`` for no limit. On Linux only.
        console: Console for the progress.

    Raises:
        TypeError: If an argument is of another kind.
        ValueError: If the table is wrong, or an argument is out of its range.
        FileNotFoundError: If the file of the table does not exist.
        OSError: If no file can be written into the folder.
        RuntimeError: If another run is at work in the folder.
    """
    check_source("table", table)
    if output is not None:
        check_path("output", output)
    if console is not None:
        check_instance("console", console, Console)
    limits = check_run(workers, devices, checkpoint_seconds, cell_timeout, retries, memory_limit)
    console = Console() if console is None else console
    table = read_table(table)
    note = partial(say, console)
    for line in refuse_mistakes(table):
        note(line)
    make_folder("output", output if output is not None else Path("runs") / table.name, "Give another `output`.")
    store = Store(output if output is not None else Path("runs") / table.name, note)
    with store.locked() as lock:
        pool = Pool(workers, store.folder / "logs", devices, lock, limits)
        run = _Run(table, store, pool, console, checkpoint_seconds)
        try:
            return run.all()
        finally:
            pool.close()


def check_run(
    workers: int,
    devices: Sequence[int] | None,
    checkpoint_seconds: float,
    cell_timeout: float | None,
    retries: int,
    memory_limit: float | None,
) -> Limits:
    """Check the arguments of :func:`run_table` that do not depend on the table; return the limits of a cell."""
    check_count("workers", workers, minimum=0)
    if devices is not None:
        check_sizes("devices", devices, minimum=0, hint="They are the numbers of GPUs.")
        if not len(devices):
            raise ValueError("`devices` must name a GPU, got none. Leave it out to use what there is.")
        if not torch.cuda.is_available():
            raise ValueError(
                f"`devices` are the numbers of GPUs, got {list(devices)}, but torch finds no GPU on this machine. "
                "Leave it out to train on the CPU."
            )
    check_not_negative("checkpoint_seconds", checkpoint_seconds)
    limits = Limits(cell_timeout, memory_limit, retries)
    limits.check_workers(workers)
    return limits


class _Run:
    """One run of a table."""

    def __init__(self, table: Table, store: Store, pool: Pool, console: Console, checkpoint_seconds: float) -> None:
        self.table, self.store, self.pool, self.console = table, store, pool, console
        self.checkpoint_seconds = checkpoint_seconds
        self.chosen: dict[tuple[str, str], Point] = {}

    def all(self) -> ResultRows:
        """Tune, then run the table."""
        self.store.write_table(self.table, code_version())
        self._tune()
        cells = table_cells(self.table, self.chosen)
        if others := self.store.rows_of_others(cells):
            self.store.note(
                f"results.csv had {counted(others, 'row')} of cells that this run does not have, and leaves them out. "
                f"Their results stay in {self.store.folder / 'cells'}; a run that has the cells writes the rows again."
            )
        self.store.write_results(self.table, cells)
        self._run_cells(cells, cells)
        rows = ResultRows(self.store.write_results(self.table, cells))
        failed = sum(row["status"] == "failed" for row in rows)
        text = f"{len(rows) - failed} of {len(cells)} cells are finished" + (f", {failed} failed" if failed else "")
        say(self.console, f"{text}. Results: {self.store.folder / 'results.csv'}")
        for line in _failures(rows):
            self.store.note(line)
        unscored = {cell.data: why for cell in cells if (why := self.store.why_unscored(self.table, cell)) is not None}
        for why in unscored.values():
            self.store.note(why)
        for sentence in self.store.diverged(self.table, cells):
            self.store.note(sentence)
        return rows

    def _tune(self) -> None:
        rows: list[dict[str, Any]] = []
        everything = plan = planned(self.table)
        for methods in levels(self.table):
            places = [(data, method) for data in self.table.data for method in methods]
            points = {place: tuning_points(self.table, *place, self.chosen) for place in places}
            trials = {
                place: [tuning_cells(self.table, *place, point) for point in tried]
                for place, tried in points.items()
                if len(tried) > 1
            }
            plan = [entry for entry in plan if entry.method not in methods]
            later = [cell for entry in plan for cell in entry.trials] + [cell for e in everything for cell in e.final]
            self._run_cells([cell for tried in trials.values() for cells in tried for cell in cells], later=later)
            for place, tried in points.items():
                if len(tried) > 1:
                    rows += self._choose(place, tried, trials[place])
                else:
                    self.chosen[place] = tried[0]
        if rows:
            self.store.write_tuning(rows)

    def _choose(self, place: tuple[str, str], points: list[Point], trials: list[list[Cell]]) -> list[dict[str, Any]]:
        """Choose the point with the best mean validation score; the first one if several are equal."""
        rows = [
            self.store.tuning_row(*place, number, point, cells)
            for number, (point, cells) in enumerate(zip(points, trials, strict=True))
        ]
        known = [row for row in rows if row["val"] is not None]
        sign = 1 if self.table.data[place[0]].mode == "max" else -1
        best = max(known, key=lambda row: sign * row["val"]) if known else rows[0]
        best["chosen"] = "yes" if known else "no score"
        self.chosen[place] = points[best["point"]]
        shown, equals = describe_point(self.chosen[place]), ""
        if known:
            equals = note_of_equals([row["val"] for row in known], best["val"])
            reason = f"{best['val']:.4f} on validation, of {len(points)} points"
            if errors := [row["error"] for row in rows if row["val"] is None]:
                reason += f"; {len(errors)} without a score: {errors[0]}"
        else:
            reason = f"all points failed: {rows[0]['error']}" if rows[0]["error"] else "no point has a validation score"
        text = f"Chosen for {place[1]} on {place[0]}: {shown} ({reason}).{equals}"
        say(self.console, text)
        return rows

    def _run_cells(
        self, cells: Sequence[Cell], table_cells: Sequence[Cell] | None = None, later: Sequence[Cell] = ()
    ) -> None:
        """Run the cells that are not finished; write ``results.csv`` after each if ``table_cells`` are given."""
        by_id = {cell.id: cell for cell in cells}
        missing = {name: cell for name, cell in by_id.items() if self.store.result(cell) is None}
        if not missing:
            return

        stage = "tuning" if table_cells is None else "cells"
        with Progress(by_id.values(), self.pool.workers, self.console, later, stage) as progress:
            for name in by_id.keys() - missing.keys():
                progress.end(by_id[name], "finished before", self.store.seconds(by_id[name]))
            jobs = (
                (name, self.store.job(cell, self.table.wandb, self.checkpoint_seconds))
                for name, cell in missing.items()
            )
            self.pool.run(jobs, _Watcher(self, progress, by_id, table_cells))


class _Watcher:
    """Hears of the cells that run: writes the files of the results and shows the progress.

    Args:
        run: The run.
        progress: Shows what happens.
        cells: The cells by their ids.
        table_cells: Cells of ``results.csv``, which is written after each cell; ``None`` does not write it.
    """

    def __init__(
        self, run: _Run, progress: Progress, cells: Mapping[str, Cell], table_cells: Sequence[Cell] | None
    ) -> None:
        self._table, self._store, self._progress = run.table, run.store, progress
        self._cells, self._table_cells = cells, table_cells
        self._retries = run.pool.limits.retries
        self._writing = Lock()
        self._seen: set[str] = set()  # the data sets with a finished cell

    def on_round(self, name: str, done: int) -> None:
        """Show a round."""
        self._progress.round(self._cells[name], done)

    def on_note(self, name: str, text: str) -> None:
        """Show a line of a cell."""
        self._progress.note(f"{describe_cell(self._cells[name])}: {text}")

    def on_retry(self, name: str, attempt: int, error: str) -> None:
        """Show that a cell failed and will be tried again."""
        self._progress.retry(self._cells[name], attempt, self._retries, message_of(error))

    def on_end(self, name: str, answer: dict[str, Any]) -> None:
        """Write the results."""
        cell, failed = self._cells[name], "error" in answer
        with self._writing:
            if failed:
                self._store.fail(cell, answer["error"])
            elif cell.data not in self._seen:  # at once, for the sake of tables that take days
                self._seen.add(cell.data)
                if (why := self._store.why_unscored(self._table, cell)) is not None:
                    self._progress.note(why)
            if self._table_cells is not None:
                self._store.write_results(self._table, self._table_cells)
        self._progress.end(cell, "failed" if failed else "finished", None if failed else self._store.seconds(cell))


def _failures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each error that cells have ended with."""
    places: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["status"] == "failed":
            places.setdefault(row["error"], []).append(row)
    lines = []
    for error, failed in places.items():
        first = "{data}, {method}, fold {fold}, seed {seed}".format(**failed[0])
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        lines.append(f"{first}{more}: {error}")
    return lines
