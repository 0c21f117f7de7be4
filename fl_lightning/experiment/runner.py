"""Runs a table: searches hyper-parameters on validation clients, then fits and tests every cell."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from time import time
from typing import Any, Literal

import torch
from filelock import SoftFileLease, Timeout
from rich.console import Console

from fl_lightning.checks import Count, Natural, NotNegative, PathLike, check
from fl_lightning.experiment.cell import CellJob, clear
from fl_lightning.experiment.check import refuse_mistakes
from fl_lightning.experiment.code_version import code_version
from fl_lightning.experiment.engines import ENGINES, Engine, Ray, Slurm
from fl_lightning.experiment.plan import Cell, levels, next_points, table_cells, tuning_cells, tuning_points
from fl_lightning.experiment.processes import CellProcess, Limits, attempt
from fl_lightning.experiment.progress import Progress, describe_cell, say
from fl_lightning.experiment.result_rows import ResultRows
from fl_lightning.experiment.search import Point, Tried, describe_point, note_of_equals
from fl_lightning.experiment.store import CLAIM, Store, message_of, write_failure
from fl_lightning.experiment.table import Table
from fl_lightning.experiment.table_file import check_source, read_table
from fl_lightning.files import make_folder

_LOOK = 0.5  # seconds from one look at the folder to the next


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
    engine: str = "local",
    engine_options: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> ResultRows:
    """Run the cells of a table that are not finished, and return the rows of its ``results.csv``.

    The hyper-parameters of methods with a ``tune`` are searched first, on validation clients. Then each cell is one
    ``Trainer.fit`` and a test of its best model. Fits of the same data set, fold and seed share partition, initial
    weights and draws of clients (common random numbers).

    Before any work, the objects of every cell are built without data, and all mistakes of the table are named at once.

    The id of a cell is the hash of its configuration, and a finished cell is never run again. An interrupted run
    continues from the last checkpoint of each cell. If a cell fails, its traceback is kept, the other cells run on, and
    the next run tries the cell again.

    Any number of runs may share a folder, on one machine or several: each takes the next cell that no other has
    claimed, and takes over the cells of a run that is gone.

    Args:
        table: A YAML file, a mapping with the same content, or a :class:`~fl_lightning.experiment.Table`.
        output: Folder of the results; ``runs/<name of the table>`` if ``None``.
        workers: Number of cells at a time, each in a process with one thread (or ``OMP_NUM_THREADS``); 0 runs the cells
            in this process. With an ``engine``, the number of runners that it starts.
        devices: Numbers of the GPUs that the workers share; ``None`` leaves the choice to each Trainer.
        checkpoint_seconds: Time between two checkpoints from which a killed fit resumes.
        cell_timeout: Seconds after which an attempt at a cell fails. A further attempt continues from its last
            checkpoint. ``None`` sets no limit.
        retries: Further attempts at a cell that failed, after the other cells.
        memory_limit: Gigabytes of main memory that a worker may allocate, about one of which the libraries take;
            ``None`` for no limit. On Linux only.
        engine: Where the workers are: ``"local"`` on this machine, ``"slurm"`` in an array of jobs, ``"ray"`` on a
            cluster.
        engine_options: For ``"slurm"`` parameters of ``submitit.AutoExecutor``, such as ``slurm_partition`` and
            ``timeout_min``; for ``"ray"`` the ``address`` of the cluster and options of a remote function, such as
            ``num_gpus``.
        console: Console for the progress.

    Raises:
        TypeError: If an argument is of another kind.
        ValueError: If the table is wrong, or an argument is out of its range.
        FileNotFoundError: If the file of the table does not exist.
        OSError: If no file can be written into the folder.
        RuntimeError: If an engine's package or program is missing, or its runners end before the table does.
    """
    check_source("table", table)
    if console is not None:
        check("`console`", console, Console)
    limits = check_run(
        workers, devices, checkpoint_seconds, cell_timeout, retries, memory_limit, engine, engine_options
    )
    console = Console() if console is None else console
    table = read_table(table)
    for line in refuse_mistakes(table):
        say(console, line)
    folder = output if output is not None else Path("runs") / table.name
    check("`output`", folder, PathLike)
    if "://" in os.fspath(folder):
        raise ValueError(
            f"`output` must be a folder of a file system, got {folder!r}: cells are claimed by lock files."
        )
    make_folder("output", folder, "Give another `output`.")
    runner = Runner(table, Path(folder).absolute(), checkpoint_seconds, limits, time())
    if engine == "local":
        return runner(console, workers, devices)
    make = Slurm if engine == "slurm" else Ray
    try:
        started = make(runner, workers, runner.folder, engine_options or {})
    except ImportError as error:
        raise RuntimeError(f"`engine` {engine!r} needs a package: pip install 'fl-lightning[{engine}]'") from error
    try:
        return runner(console, 0, engine=started)
    finally:
        started.stop()


def check_run(
    workers: int,
    devices: Sequence[int] | None,
    checkpoint_seconds: float,
    cell_timeout: float | None,
    retries: int,
    memory_limit: float | None,
    engine: str,
    engine_options: Mapping[str, Any] | None,
) -> Limits:
    """Check the arguments of :func:`run_table` that do not depend on the table; return the limits of a cell."""
    check("`engine`", engine, Literal[*ENGINES])
    check("`workers`", workers, Natural if engine == "local" else Count)
    if devices is not None:
        check("`devices`", devices, Sequence[Natural])
        if engine != "local" or not len(devices) or not torch.cuda.is_available():
            raise ValueError(
                f"`devices` must name GPUs of this machine, got {list(devices)} with the engine {engine!r} and "
                f"{torch.cuda.device_count()} GPUs. Leave it out to use what there is."
            )
    if engine_options and engine == "local":
        raise ValueError(f"`engine_options` are for an `engine` other than 'local', got {dict(engine_options)!r}.")
    check("`checkpoint_seconds`", checkpoint_seconds, NotNegative)
    limits = Limits(cell_timeout, memory_limit, retries)
    if workers == 0 and (cell_timeout is not None or memory_limit is not None):
        name = "memory_limit" if cell_timeout is None else "cell_timeout"
        raise ValueError(
            f"`{name}` must be None with `workers=0`, got {getattr(limits, name)!r}: the cells run in this process, "
            "which cannot end itself. Give `workers=1`."
        )
    return limits


@dataclass
class Runner:
    """Runs the cells of a table that no other runner of the folder takes; engines send it elsewhere.

    Attributes:
        table: The table.
        folder: Folder of the results.
        checkpoint_seconds: Time between two checkpoints.
        limits: What a cell may take.
        since: When the whole run began: attempts that have failed since count, whoever made them.
    """

    table: Table
    folder: Path
    checkpoint_seconds: float
    limits: Limits
    since: float

    def __call__(
        self,
        console: Console | None = None,
        workers: int = 1,
        devices: Sequence[int] | None = None,
        engine: Engine | None = None,
    ) -> ResultRows:
        """Tune, then run the table; with an engine, watch its runners do so."""
        self.console, self.workers, self.devices, self.engine = console or Console(), workers, devices, engine
        self.store = Store(self.folder)
        self.chosen: dict[tuple[str, str], Point] = {}
        self._at_work: dict[int, tuple[Cell, CellProcess]] = {}  # by the number of the worker
        self._leases: dict[str, SoftFileLease] = {}  # each must be looked at for a while until it is known to be stale
        self.store.write_table(self.table, code_version())
        try:
            self._tune()
            cells = table_cells(self.table, self.chosen)
            self._run_cells(cells, cells)
        finally:
            for _, process in self._at_work.values():  # after Ctrl-C, which does not reach them
                process.kill()
        rows = ResultRows(self.store.write_results(self.table, cells))
        self._say_what_came_out(rows, cells)
        return rows

    def checkpoint(self) -> Any:
        """Return what submitit puts into the queue again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(Runner(self.table, self.folder, self.checkpoint_seconds, self.limits, self.since))

    def _say_what_came_out(self, rows: ResultRows, cells: Sequence[Cell]) -> None:
        failed = sum(row["status"] == "failed" for row in rows)
        text = f"{len(rows) - failed} of {len(cells)} cells are finished" + (f", {failed} failed" if failed else "")
        unscored = {cell.data: why for cell in cells if (why := self.store.why_unscored(self.table, cell)) is not None}
        codes = {code for row in rows if ", then " in (code := row.get("code", ""))}
        for line in (
            f"{text}. Results: {self.store.folder / 'results.csv'}",
            *_failures(rows),
            *unscored.values(),
            *self.store.diverged(self.table, cells),
            *(f"Fits ran under several versions of the code, which `code` names: {code}." for code in sorted(codes)),
        ):
            say(self.console, line)

    def _tune(self) -> None:
        rows: list[dict[str, Any]] = []
        for methods in levels(self.table):
            searches: dict[tuple[str, str], list[tuple[Point, list[Cell]]]] = {}
            for place in ((data, method) for data in self.table.data for method in methods):
                first, *others = tuning_points(self.table, *place, self.chosen)
                self.chosen[place] = first
                if others:
                    searches[place] = []
            while trials := {place: new for place in searches if (new := self._next_trials(place, searches[place]))}:
                self._run_cells([cell for new in trials.values() for _, cells in new for cell in cells])
                for place, new in trials.items():
                    searches[place] += new
            for place, done in searches.items():
                rows += self._choose(place, [self.store.tried(*trial) for trial in done])
        if rows:
            self.store.write_tuning(rows)

    def _next_trials(
        self, place: tuple[str, str], done: Sequence[tuple[Point, list[Cell]]]
    ) -> list[tuple[Point, list[Cell]]]:
        """Return the points of a search that run together after others, and their cells."""
        tried = [self.store.tried(*trial) for trial in done]
        points = next_points(self.table, *place, self.chosen, tried)
        return [
            (point, tuning_cells(self.table, *place, point, number, tried))
            for number, point in enumerate(points, len(tried))
        ]

    def _choose(self, place: tuple[str, str], tried: Sequence[Tried]) -> list[dict[str, Any]]:
        """Choose the point with the best mean validation score; the first one if several are equal."""
        known = {each: each.score for each in tried if each.score is not None and not each.pruned}
        sign = 1 if self.table.data[place[0]].mode == "max" else -1
        best = max(known, key=lambda each: sign * known[each]) if known else tried[0]
        self.chosen[place] = best.point
        shown, equals = describe_point(best.point), ""
        if known:
            equals = note_of_equals(list(known.values()), known[best])
            reason = f"{known[best]:.4f} on validation, of {len(tried)} points"
            if pruned := sum(each.pruned > 0 for each in tried):
                reason += f", {pruned} of them pruned"
            if errors := [each.error for each in tried if each.score is None]:
                reason += f"; {len(errors)} without a score: {errors[0]}"
        else:
            reason = f"all points failed: {best.error}" if best.error else "no point has a validation score"
        text = f"Chosen for {place[1]} on {place[0]}: {shown} ({reason}).{equals}"
        say(self.console, text)
        return [
            {
                "data": place[0],
                "method": place[1],
                "point": number,
                "values": json.dumps(each.point, sort_keys=True),
                "val": each.score,
                "fits": each.finite,
                "chosen": "" if each is not best else "yes" if known else "no score",
                "error": each.error,
            }
            for number, each in enumerate(tried)
        ]

    def _run_cells(self, cells: Sequence[Cell], table_cells: Sequence[Cell] | None = None) -> None:
        """Run cells until all have ended, whoever runs them; write ``results.csv`` if ``table_cells`` are given."""
        by_id = {cell.id: cell for cell in cells}
        waiting = {name: cell for name, cell in by_id.items() if self.store.result(cell) is None}
        if table_cells is not None:
            self.store.write_results(self.table, table_cells)
        if not waiting:
            return
        with Progress(by_id, self.store, self.console, "tuning" if table_cells is None else "cells") as progress:
            for name in by_id.keys() - waiting.keys():
                progress.end(by_id[name], "finished before")
            told: Counter[str] = Counter()  # the failed attempts of which the user knows
            while waiting or self._at_work:
                are_gone = self.engine is not None and self.engine.all_ended()  # before looking at what they have left
                self._end_cells()
                failed = Counter({name: self.store.failures(cell, self.since) for name, cell in waiting.items()})
                done = [name for name, cell in waiting.items() if self.store.result(cell) is not None]
                given_up = [name for name in waiting if name not in done and failed[name] > self.limits.retries]
                for name in (*done, *given_up):
                    progress.end(waiting.pop(name), "finished" if name in done else "failed")
                for name in [name for name in waiting if failed[name] > told[name]]:
                    attempts = f"{failed[name]} of {self.limits.retries}"
                    error = message_of(self.store.error(by_id[name]) or "")
                    progress.note(f"To be tried again ({attempts}): {describe_cell(by_id[name])}: {error}")
                told = failed
                if (done or given_up) and table_cells is not None:
                    self.store.write_results(self.table, table_cells)
                if waiting and are_gone:
                    raise RuntimeError(f"The runners have ended, and {len(waiting)} cells are left. Run it again.")
                if not self._start_cells(sorted(waiting.values(), key=lambda cell: failed[cell.id])):
                    connection.wait([process.sentinel for _, process in self._at_work.values()], _LOOK)
                progress.update()
        for cell in by_id.values():
            if self.store.result(cell) is not None:  # a kill may have come between the result and this
                clear(self.store.cell_folder(cell))

    def _start_cells(self, waiting: Sequence[Cell]) -> bool:
        """Let free workers take the first cells that nobody has claimed; return whether one ran in this process."""
        mine = {cell.id for cell, _ in self._at_work.values()}
        free = (cell for cell in waiting if cell.id not in mine and self._is_free(cell))
        if self.workers == 0 and self.engine is None and (cell := next(free, None)) is not None:
            attempt(self._job(cell), self.since)
            return True
        for number in range(self.workers):
            if number not in self._at_work and (cell := next(free, None)) is not None:
                device = self.devices[number % len(self.devices)] if self.devices else None
                self._at_work[number] = cell, CellProcess(self._job(cell), self.limits, self.since, device)
        return False

    def _job(self, cell: Cell) -> CellJob:
        return CellJob(cell, self.folder, self.table.wandb, self.checkpoint_seconds)

    def _is_free(self, cell: Cell) -> bool:
        claim = self.store.cell_folder(cell) / CLAIM
        claim.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._leases.setdefault(cell.id, SoftFileLease(claim, timeout=0)):
                return self.store.result(cell) is None
        except Timeout:
            return False

    def _end_cells(self) -> None:
        """Make room for other cells where a process has ended."""
        for number, (cell, process) in list(self._at_work.items()):
            error = process.how_it_ended()
            if error is None:
                continue
            del self._at_work[number]
            if error and self.store.result(cell) is None:
                write_failure(self.store.cell_folder(cell), error, self.since)


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
