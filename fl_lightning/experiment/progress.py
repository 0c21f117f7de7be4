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

#: The time that is left is estimated from so many seconds of the past.
_PERIOD = 3600.0


class Progress(bars.Progress):
    """A bar for each method and data set, and one for all, read from the files of the cells of all processes.

    If the console is no terminal, each cell prints a line when it ends.

    Args:
        cells: All cells of this stage.
        store: The folder with their files.
        console: Console for the output.
        stage: What the cells are for: ``"cells"`` of the table, or ``"tuning"``.

    Attributes:
        is_at_work: Whether some cell was running at the last look.
    """

    def __init__(self, cells: Sequence[Cell], store: Store, console: Console, stage: str) -> None:
        super().__init__(
            # A name may have brackets.
            bars.TextColumn("{task.description}", markup=False),
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
        self._store = store
        self._stage = stage
        self._cells = cells
        groups: dict[str, list[Cell]] = {}
        for cell in cells:
            groups.setdefault(f"{cell.method} on {cell.data}", []).append(cell)
        if len(groups) > 1:
            groups[stage] = list(cells)
        self.is_at_work = False
        self._groups: dict[bars.TaskID, list[Cell]] = {}
        for name, group in groups.items():
            rounds = sum(cell.max_epochs for cell in group)
            task = self.add_task(name, total=rounds, counts="")
            self._groups[task] = group

    def end(self, cell: Cell, status: str, left: int) -> None:
        """Tell of the end of a cell: ``"finished"`` or ``"failed"``; others are left."""
        self.look()
        if self.console.is_terminal:
            return
        text = f"{self._stage} {len(self._cells) - left}/{len(self._cells)} {status}: {describe_cell(cell)}"
        if status == "failed":
            text += shorten(f": {self._store.failure(cell)['error']}", 150)
        seconds = self.tasks[-1].time_remaining
        if seconds:
            text += f"; about {duration(seconds)} left"
        say(self.console, text)

    def look(self) -> None:
        """Read the states of the cells."""
        known = {cell.id: self._store.state(cell) for cell in self._cells}
        self.is_at_work = any(state == "running" for state, _ in known.values())
        for task, group in self._groups.items():
            completed = 0
            counts: Counter[str] = Counter()
            for cell in group:
                state, rounds = known[cell.id]
                counts[state] += 1
                completed += rounds
            shown = [f"{counts[state]} {state}" for state in ("finished", "failed", "running") if counts[state]]
            self.update(task, completed=completed, counts=", ".join(shown))


def say(console: Console, text: str) -> None:
    """Print a line. A terminal breaks it between words; elsewhere it stays whole."""
    console.print(Text(text), soft_wrap=not console.is_terminal)


def describe_cell(cell: Cell) -> str:
    """Return the place of a cell in the table as a string."""
    values = f", {describe_point(cell.values)}" if cell.values else ""
    return f"{cell.data}, {cell.method}, fold {cell.fold}, seed {cell.seed}{values}"
