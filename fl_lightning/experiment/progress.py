"""Live display of the progress of an experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import shorten

from rich import progress as bars
from rich.console import Console
from rich.text import Text

from fl_lightning.experiment.plan import Cell
from fl_lightning.experiment.search import describe_point
from fl_lightning.experiment.store import Store
from fl_lightning.words import duration

_PERIOD = 3600.0  # seconds of the past from which the time left is estimated


class Progress(bars.Progress):
    """A bar for each method and data set, and one for all, read from the files of the cells of all processes.

    If the console is no terminal, each cell prints a line when it ends.

    Args:
        cells: All cells of this stage.
        store: The folder with their files.
        console: Console for the output.
        stage: What the cells are for: ``"cells"`` of the table, or ``"tuning"``.
    """

    def __init__(self, cells: Sequence[Cell], store: Store, console: Console, stage: str) -> None:
        super().__init__(
            bars.TextColumn("{task.description}", markup=False),  # a name may have brackets
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
        self._store, self._stage, self._cells = store, stage, cells
        groups: dict[str, list[Cell]] = {}
        for cell in cells:
            groups.setdefault(f"{cell.method} on {cell.data}", []).append(cell)
        groups = {**groups, stage: list(cells)} if len(groups) > 1 else groups
        totals = {name: sum(cell.max_epochs for cell in group) for name, group in groups.items()}
        self._groups = {self.add_task(name, total=totals[name], counts=""): group for name, group in groups.items()}

    def end(self, cell: Cell, status: str, left: int) -> None:
        """Tell of the end of a cell: ``"finished"`` or ``"failed"``; others are left."""
        self.look()
        if not self.console.is_terminal:
            seconds = self.tasks[-1].time_remaining
            then = f"; about {duration(seconds)} left" if seconds else ""
            place = f"{self._stage} {len(self._cells) - left}/{len(self._cells)}"
            why = shorten(f": {self._store.failure(cell)['error']}", 150) if status == "failed" else ""
            say(self.console, f"{place} {status}: {describe_cell(cell)}{why}{then}")

    def look(self) -> None:
        """Read the states of the cells."""
        known = {cell.id: self._store.state(cell) for cell in self._cells}
        for task, group in self._groups.items():
            states = [known[cell.id] for cell in group]
            counts = Counter(state for state, _ in states)
            text = ", ".join(f"{counts[state]} {state}" for state in ("finished", "failed", "running") if counts[state])
            self.update(task, completed=sum(rounds for _, rounds in states), counts=text)


def say(console: Console, text: str) -> None:
    """Print a line. A terminal breaks it between words; elsewhere it stays whole."""
    console.print(Text(text), soft_wrap=not console.is_terminal)


def describe_cell(cell: Cell) -> str:
    """Return the place of a cell in the table as a string."""
    values = f", {describe_point(cell.values)}" if cell.values else ""
    return f"{cell.data}, {cell.method}, fold {cell.fold}, seed {cell.seed}{values}"
