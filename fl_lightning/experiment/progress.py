"""Live display of the progress of an experiment."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fl_lightning.experiment.plan import Cell
from fl_lightning.experiment.search import describe_point
from fl_lightning.representation import duration


class Progress:
    """A table of data sets and methods: finished, failed and running cells, and an estimate of the time left.

    The estimate multiplies the rounds that are left by the mean time of a round: of the same data set and method, or if
    none has run yet, of the same data set, or of all. If the console is not a terminal, a cell prints a line when it
    ends.

    Args:
        cells: All cells of this run.
        workers: Number of cells that run at the same time.
        console: Console for the output.
        later: Cells of later stages; the estimate includes them.
        stage: What the cells are for: ``"cells"`` of the table, or ``"tuning"``.
    """

    def __init__(
        self,
        cells: Iterable[Cell],
        workers: int,
        console: Console | None = None,
        later: Sequence[Cell] = (),
        stage: str = "cells",
    ) -> None:
        self.stage = stage
        self.cells = {cell.id: cell for cell in cells}
        self.later = [cell for cell in later if cell.id not in self.cells]
        self.workers = max(1, workers)
        self.console = console or Console()
        self._done: dict[str, str] = {}
        self._rounds: dict[str, int] = {}
        self._first: dict[str, tuple[float, int]] = {}
        self._paces: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._lock = threading.Lock()
        self._live = Live(console=self.console, get_renderable=self.render, refresh_per_second=2, transient=True)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def end(self, cell: Cell, status: str, seconds: float | None = None) -> None:
        """Note the end of a cell.

        Args:
            cell: The cell.
            status: ``"finished"``, ``"finished before"`` (by an earlier run) or ``"failed"``.
            seconds: Duration of the fit, if known.
        """
        with self._lock:
            self._done[cell.id] = status
            self._rounds.pop(cell.id, None)
            if seconds is not None:
                self._count(cell, seconds, cell.max_epochs)
        if status != "finished before" and not self.console.is_terminal:
            number = f"{self.stage} {len(self._done)}/{len(self.cells)}"
            is_last = len(self._done) == len(self.cells) and not self.later
            self.note(f"{number} {status}: {describe_cell(cell)}" + ("" if is_last else f"; {self.left()}"))

    def note(self, text: str) -> None:
        """Print a line, above the table if there is one."""
        say(self.console, text)

    def retry(self, cell: Cell, attempt: int, attempts: int, error: str) -> None:
        """Note that a cell failed and will be tried again."""
        with self._lock:
            self._rounds.pop(cell.id, None)
            self._first.pop(cell.id, None)
        self.note(f"To be tried again ({attempt} of {attempts}): {describe_cell(cell)}: {error}")

    def round(self, cell: Cell, done: int) -> None:
        """Note the number of rounds that a cell has finished."""
        with self._lock:
            now = time.monotonic()
            if cell.id not in self._first:
                self._first[cell.id] = now, done
            self._rounds[cell.id] = done

    def _count(self, cell: Cell, seconds: float, rounds: int) -> None:
        for key in ((cell.data, cell.method), (cell.data,), ()):
            self._paces[key][0] += seconds
            self._paces[key][1] += rounds

    def seconds_left(self) -> float | None:
        """Return the estimate of the time left; ``None`` as long as no round has been timed."""
        with self._lock:
            now = time.monotonic()
            running = [(self.cells[cell], *self._first[cell], done) for cell, done in self._rounds.items()]
            paces = {key: list(pace) for key, pace in self._paces.items()}
            for cell, since, first, done in running:
                for key in ((cell.data, cell.method), (cell.data,), ()):
                    pace = paces.setdefault(key, [0.0, 0.0])
                    pace[0], pace[1] = pace[0] + now - since, pace[1] + done - first
            waiting = [cell for name, cell in self.cells.items() if name not in self._done]
            total = 0.0
            for cell in (*waiting, *self.later):
                seconds_a_round = _pace_of(cell, paces)
                if seconds_a_round is None:
                    return None
                total += seconds_a_round * max(0, cell.max_epochs - self._rounds.get(cell.id, 0))
        return total / self.workers

    def left(self) -> str:
        """Return the estimate as a text."""
        seconds = self.seconds_left()
        return "time left unknown" if seconds is None else f"about {duration(seconds)} left"

    def render(self) -> Group:
        """Return the table and the line below it."""
        table = Table("data", "method", "finished", "failed", "running", title_justify="left")
        for column in table.columns[2:]:
            column.justify = "right"
        groups: dict[tuple[str, str], list[Cell]] = defaultdict(list)
        for cell in self.cells.values():
            groups[cell.data, cell.method].append(cell)
        for (data, method), cells in groups.items():
            states = [self._done.get(cell.id, "") for cell in cells]
            finished = sum(state.startswith("finished") for state in states)
            failed = states.count("failed")
            running = [f"{self._rounds[cell.id]}/{cell.max_epochs}" for cell in cells if cell.id in self._rounds]
            if finished < len(cells) or failed:
                row = (data, method, f"{finished}/{len(cells)}", str(failed or ""), ", ".join(running))
                table.add_row(*row, style="bold" if running else None)
        return Group(table, Text(f"{self.stage}: {len(self._done)} of {len(self.cells)}, {self.left()}"))


def say(console: Console, text: str) -> None:
    """Print a line. A terminal breaks it between words; elsewhere it stays whole."""
    console.print(Text(text), soft_wrap=not console.is_terminal)


def describe_cell(cell: Cell) -> str:
    """Return the place of a cell in the table as a text."""
    values = f", {describe_point(cell.values)}" if cell.values else ""
    return f"{cell.data}, {cell.method}, fold {cell.fold}, seed {cell.seed}{values}"


def _pace_of(cell: Cell, paces: Mapping[tuple[str, ...], list[float]]) -> float | None:
    for key in ((cell.data, cell.method), (cell.data,), ()):
        seconds, rounds = paces.get(key, (0.0, 0.0))
        if rounds > 0:
            return seconds / rounds
    return None
