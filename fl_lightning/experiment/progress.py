"""Live display of the progress of an experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import progress as bars
from rich.console import Console
from rich.text import Text

from fl_lightning.checks import duration
from fl_lightning.experiment.plan import Cell
from fl_lightning.experiment.search import describe_point
from fl_lightning.experiment.store import Store

_PERIOD = 3600.0  # seconds of the past from which the time left is estimated


class Progress(bars.Progress):
    """A bar for each method and data set, and one for all, read from the files of the cells, whoever runs them.

    If the console is no terminal, each cell prints a line when it ends.

    Args:
        cells: All cells of this stage.
        store: The folder with their files.
        console: Console for the output.
        stage: What the cells are for: ``"cells"`` of the table, or ``"tuning"``.
    """

    def __init__(self, cells: Sequence[Cell], store: Store, console: Console, stage: str) -> None:
        super().__init__(
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
        self._store, self._stage, self._ended = store, stage, dict[str, str]()
        groups: dict[str, list[Cell]] = {}
        for cell in cells:
            groups.setdefault(f"{cell.method} on {cell.data}", []).append(cell)
        groups = {**groups, stage: list(cells)} if len(groups) > 1 else groups
        totals = {name: sum(cell.max_epochs for cell in group) for name, group in groups.items()}
        self._groups = {self.add_task(name, total=totals[name], counts=""): group for name, group in groups.items()}
        self._number = len(cells)

    def end(self, cell: Cell, status: str) -> None:
        """Note the end of a cell: ``"finished"``, ``"finished before"`` (by an earlier run) or ``"failed"``."""
        self._ended[cell.id] = status
        if status != "finished before":
            self.look()
            if not self.console.is_terminal:
                seconds = self.tasks[-1].time_remaining
                left = f"; about {duration(seconds)} left" if seconds else ""
                number = f"{self._stage} {len(self._ended)}/{self._number}"
                say(self.console, f"{number} {status}: {describe_cell(cell)}{left}")

    def look(self) -> None:
        """Read the rounds of the cells that are at work."""
        for task, group in self._groups.items():
            states: Counter[str] = Counter()
            rounds = 0
            for cell in group:
                state, done = self._state(cell)
                states[state] += 1
                rounds += done
            counts = [f"{states[state]} {state}" for state in ("finished", "failed", "running") if states[state]]
            self.update(task, completed=rounds, counts=", ".join(counts))

    def _state(self, cell: Cell) -> tuple[str, int]:
        """Return whether a cell is finished, failed, running or waiting, and how many of its rounds are done."""
        if cell.id in self._ended:
            return self._ended[cell.id].split()[0], cell.max_epochs
        rounds = self._store.rounds(cell)
        return ("waiting", 0) if rounds is None else ("running", rounds)


def say(console: Console, text: str) -> None:
    """Print a line. A terminal breaks it between words; elsewhere it stays whole."""
    console.print(Text(text), soft_wrap=not console.is_terminal)


def describe_cell(cell: Cell) -> str:
    """Return the place of a cell in the table as a text."""
    values = f", {describe_point(cell.values)}" if cell.values else ""
    return f"{cell.data}, {cell.method}, fold {cell.fold}, seed {cell.seed}{values}"
