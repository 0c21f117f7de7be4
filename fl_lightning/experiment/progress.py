"""Live display of the progress of an experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Self

from rich import progress as bars
from rich.console import Console
from rich.text import Text

from fl_lightning.checks import duration
from fl_lightning.experiment.plan import Cell
from fl_lightning.experiment.search import describe_point
from fl_lightning.experiment.store import Store

_PERIOD = 3600.0  # seconds of the past from which the time left is estimated


class Progress:
    """A bar for each method and data set, and one for all, read from the files of the cells, whoever runs them.

    If the console is no terminal, each cell prints a line when it ends.

    Args:
        cells: All cells of this stage by their ids.
        store: The folder with their files.
        console: Console for the output.
        stage: What the cells are for: ``"cells"`` of the table, or ``"tuning"``.
    """

    def __init__(self, cells: Mapping[str, Cell], store: Store, console: Console, stage: str = "cells") -> None:
        self.cells, self.store, self.console, self.stage = cells, store, console, stage
        self._ended: dict[str, str] = {}
        self.bars = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(bar_width=None),
            bars.TextColumn("{task.fields[counts]}", justify="right"),
            bars.TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            speed_estimate_period=_PERIOD,
            refresh_per_second=2,
            expand=True,
        )
        self._tasks: dict[tuple[str, str] | None, bars.TaskID] = {}
        totals: Counter[tuple[str, str] | None] = Counter()
        for cell in cells.values():
            totals[cell.data, cell.method] += max(1, cell.max_epochs)
        if len(totals) > 1:
            totals[None] = totals.total()
        for place, total in totals.items():
            name = stage if place is None else f"{place[1]} on {place[0]}"
            self._tasks[place] = self.bars.add_task(name, total=total, counts="")
        self._totals = totals

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def end(self, cell: Cell, status: str) -> None:
        """Note the end of a cell: ``"finished"``, ``"finished before"`` (by an earlier run) or ``"failed"``."""
        self._ended[cell.id] = status
        if status != "finished before":
            self.update()
            if not self.console.is_terminal:
                number = f"{self.stage} {len(self._ended)}/{len(self.cells)}"
                self.note(f"{number} {status}: {describe_cell(cell)}{self._left()}")

    def update(self) -> None:
        """Read the rounds of the cells that are at work."""
        rounds: Counter[tuple[str, str] | None] = Counter()
        counts: Counter[tuple[tuple[str, str] | None, str]] = Counter()
        for name, cell in self.cells.items():
            state, done = self._ended.get(name, ""), max(1, cell.max_epochs)
            if not state:
                known = self.store.rounds(cell)
                state, done = ("waiting", 0) if known is None else ("running", min(known, done))
            for place in ((cell.data, cell.method), None):
                rounds[place] += done
                counts[place, state.split()[0]] += 1
        for place, task in self._tasks.items():
            numbers = ", ".join(
                f"{counts[place, state]} {state}" for state in ("finished", "failed", "running") if counts[place, state]
            )
            self.bars.update(task, completed=rounds[place], counts=numbers)

    def _left(self) -> str:
        seconds = self.bars.tasks[-1].time_remaining
        return f"; about {duration(seconds)} left" if seconds else ""

    def note(self, text: str) -> None:
        """Print a line, above the bars if there are any."""
        say(self.console, text)


def say(console: Console, text: str) -> None:
    """Print a line. A terminal breaks it between words; elsewhere it stays whole."""
    console.print(Text(text), soft_wrap=not console.is_terminal)


def describe_cell(cell: Cell) -> str:
    """Return the place of a cell in the table as a text."""
    values = f", {describe_point(cell.values)}" if cell.values else ""
    return f"{cell.data}, {cell.method}, fold {cell.fold}, seed {cell.seed}{values}"
