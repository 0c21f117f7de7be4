"""Runs a table: searches hyper-parameters on validation clients, then fits and tests every cell."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from fl_lightning.experiment.cell import CellJob
from fl_lightning.experiment.check import refuse_mistakes
from fl_lightning.experiment.engines import Engine, start_engine
from fl_lightning.experiment.files import write_csv
from fl_lightning.experiment.plan import Cell, MethodSearch, levels, table_cells
from fl_lightning.experiment.processes import RunOptions, Workers
from fl_lightning.experiment.progress import Progress, describe_cell, say
from fl_lightning.experiment.search import Point, Search
from fl_lightning.experiment.store import ResultRows, Store, code_version, describe_results
from fl_lightning.experiment.table import Table
from fl_lightning.experiment.table_file import read_table
from fl_lightning.files import make_folder
from fl_lightning.settings import PathLike, check
from fl_lightning.words import duration, quantity

#: Seconds from one look at the folder to the next.
_LOOK = 0.5
#: After so many seconds without a runner at work the user is told, and again after twice as many, and so on.
_FIRST_WORD = 10.0


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
    engine: Literal["local", "slurm", "ray"] = "local",
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
        table: A YAML file, the name of a table that comes with the package, a mapping with the same content, or a
            :class:`~fl_lightning.experiment.Table`.
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
            ``timeout_min``; for ``"ray"`` the ``address`` of the cluster, the ``node_ip_address`` of the node by which
            this process joins it, and options of a remote function, such as ``num_gpus``.
        console: Console for the progress.

    Raises:
        TypeError: If an argument is of another kind.
        ValueError: If the table is wrong, or an argument is out of its range.
        FileNotFoundError: If the file of the table does not exist.
        OSError: If no file can be written into the folder.
        RuntimeError: If an engine's package or program is missing, or its runners end before the table does.
    """
    options = RunOptions(
        workers, devices, checkpoint_seconds, cell_timeout, retries, memory_limit, engine, engine_options
    )
    console = check("`console`", console or Console(), Console)
    table = read_table(table)
    for line in refuse_mistakes(table):
        say(console, line)
    folder = Path("runs") / table.name if output is None else check("`output`", output, PathLike)
    # A Path has lost the second slash of a URL.
    if re.match(r"\w\w+:/", os.fspath(folder)):
        raise ValueError(f"`output` must be a folder, in which lock files claim the cells, got {os.fspath(folder)!r}.")
    make_folder("output", folder, "Give another `output`.")
    run = TableRun(table, Path(folder).absolute(), options, Store(folder).failures())
    if engine == "local":
        return run(console)
    elsewhere = replace(run, options=replace(options, workers=1, engine="local", engine_options=None))
    say(console, f"Starting {quantity(workers, 'runner')} by the engine {engine!r}.")
    started = start_engine(engine, elsewhere, workers, run.folder, engine_options or {})
    say(console, "Started. A runner first needs a free place, and then some seconds to import PyTorch.")
    try:
        return run(console, started)
    finally:
        started.stop()


@dataclass
class Runner:
    """Runs cells that no other runner of the folder takes.

    Attributes:
        folder: Folder of the results.
        options: How they are run.
        before: How many attempts had failed at each cell, by its id, when the whole run began. Those that fail later
            count, whichever runner made them.
        job: Returns the order to run a cell.
        console: Console for the progress.
        engine: Its runners run the cells.
    """

    folder: Path
    options: RunOptions
    before: Mapping[str, int]
    job: Callable[[Cell], CellJob]
    console: Console
    engine: Engine | None = None

    def __post_init__(self) -> None:
        self.store = Store(self.folder)
        self.workers = Workers(self.options)
        self._begun = time.monotonic()
        self._next_word = _FIRST_WORD
        # The runners of an engine take their time to be at work.
        self._has_arrived = self.engine is None

    def try_next(self, searches: Sequence[Search]) -> bool:
        """Run the next points of searches; return whether there were any."""
        trials: list[tuple[Search, Point, list[Cell]]] = []
        every: list[Cell] = []
        for search in searches:
            for number, point in enumerate(search.next_points(), len(search.tried)):
                cells = search.cells(point, number)
                trials.append((search, point, cells))
                every += cells
        if not trials:
            return False
        self.run_cells(every, "tuning")
        for search, point, cells in trials:
            search.tried.append(self.store.tried(point, cells))
        return True

    def run_cells(self, cells: Sequence[Cell], stage: str, on_change: Callable[[], object] = lambda: None) -> None:
        """Run cells until all have ended, in any runner.

        Args:
            cells: The cells.
            stage: What they are for.
            on_change: Called at the start, and when a cell has ended.
        """
        every = {cell.id: cell for cell in cells}
        waiting = {}
        for name, cell in every.items():
            if self.store.result(cell) is None:
                waiting[name] = cell
            else:
                # A run may have been killed after it wrote the result.
                self.store.remove_attempts(cell)
        with Progress(list(every.values()), self.store, self.console, stage) as progress:
            on_change()
            while waiting or self.workers:
                # This comes before the look at what the runners of an engine have left.
                are_gone = self.engine is not None and self.engine.all_ended()
                self.workers.end()
                failed = {name: self._failed(cell) for name, cell in waiting.items()}
                for name, cell in list(waiting.items()):
                    is_finished = self.store.result(cell) is not None
                    if is_finished or failed[name] > self.options.retries:
                        self._tell_arrival(is_at_work=True)
                        del waiting[name]
                        if is_finished:
                            self.store.remove_attempts(cell)
                        progress.end(cell, "finished" if is_finished else "failed", len(waiting))
                        on_change()
                if waiting and are_gone:
                    raise RuntimeError(f"The runners have ended, and {len(waiting)} cells are left. Run it again.")
                self._start_next(sorted(waiting.values(), key=lambda cell: failed[cell.id]))
                progress.look()
                self._tell_arrival(is_at_work=progress.is_at_work)

    def _tell_arrival(self, *, is_at_work: bool) -> None:
        """Say when the first runner of an engine is at work, and from time to time that none is."""
        if self._has_arrived or self.engine is None:
            return
        waited = time.monotonic() - self._begun
        if is_at_work:
            say(self.console, f"The first runner is at work, after {duration(waited)}.")
            self._has_arrived = True
        elif waited >= self._next_word:
            say(self.console, f"No runner is at work yet, after {duration(waited)}. {self.engine.look}")
            self._next_word *= 2

    def _start_next(self, waiting: Sequence[Cell]) -> None:
        """Let a free worker take the first cell that nobody has claimed; if there is none, wait a little."""
        job = self.workers.claim(map(self.job, waiting))
        if job is None:
            if not self.workers:
                for folder, holder in self.workers.claims.waited_for():
                    say(self.console, f"Waiting for cells/{folder.name}, which is run by {holder}.")
            self.workers.wait(_LOOK if waiting or self.workers else 0)
            return
        attempts = self._failed(job.cell)
        if attempts:
            error = f"{describe_cell(job.cell)}: {self.store.failure(job.cell)['error']}"
            say(self.console, f"Tried again ({attempts} of {self.options.retries}): {error}")
        self.workers.start(job)

    def _failed(self, cell: Cell) -> int:
        """Return how many attempts at a cell have failed since the run began."""
        return int(self.store.failure(cell).get("attempts", 0)) - self.before.get(cell.id, 0)


@dataclass
class TableRun:
    """One run of a table, which an engine may send elsewhere.

    Attributes:
        table: The table.
        folder: Folder of the results.
        options: How the cells are run.
        before: How many attempts had failed at each cell, by its id, when the whole run began.
    """

    table: Table
    folder: Path
    options: RunOptions
    before: Mapping[str, int]

    def __call__(self, console: Console | None = None, engine: Engine | None = None) -> ResultRows:
        """Tune, then run the table; with an engine, watch its runners do so."""
        seconds = self.options.checkpoint_seconds
        job = partial(CellJob, results=self.folder, wandb=self.table.wandb, checkpoint_seconds=seconds)
        runner = Runner(self.folder, self.options, self.before, job, console or Console(), engine)
        runner.store.write_table(self.table, code_version())
        try:
            cells = table_cells(self.table, self._tune(runner))
            runner.run_cells(cells, "cells", lambda: runner.store.write_results(self.table, cells))
        finally:
            # Ctrl-C does not reach the workers.
            runner.workers.close()
        rows = ResultRows(runner.store.write_results(self.table, cells))
        for line in describe_results(self.table, rows, len(cells), self.folder):
            say(runner.console, line)
        return rows

    def checkpoint(self) -> Any:
        """Return what submitit puts into the queue again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _tune(self, runner: Runner) -> list[MethodSearch]:
        """Run all searches, and return them."""
        every: list[MethodSearch] = []
        for searches in levels(self.table):
            tuned = [search for search in searches if len(search.points) > 1]
            while runner.try_next(tuned):
                continue
            for search in tuned:
                say(runner.console, search.describe())
            every += searches
        rows: list[dict[str, Any]] = []
        for search in every:
            rows += search.rows()
        if rows:
            write_csv(self.folder / "tuning.csv", list(rows[0]), rows)
        return every
