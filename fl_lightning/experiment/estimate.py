"""What a table would take, before it is run."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fl_lightning.experiment.cell import run_cell
from fl_lightning.experiment.plan import make_cell, planned, tuning_points
from fl_lightning.experiment.progress import duration
from fl_lightning.experiment.store import Store
from fl_lightning.experiment.table import Table


def describe_plan(table: Table, folder: str | Path) -> str:
    """Return the fits and rounds of each method and data set, and how many are finished in a folder.

    As long as values are still to be chosen, those that are finished are counted for the first point of a search.
    """
    table.check()
    store = Store(folder)
    lines, total = [f"{table.name}: {len(table.folds)} folds x {len(table.seeds)} seeds"], 0
    for entry in planned(table):
        done = sum(store.result(cell) is not None for cell in entry.cells.values())
        rounds = sum(cell.max_epochs for cell in entry.cells.values())
        total += rounds
        tuning = f"{entry.num_points} points, {len(entry.trials)} fits to tune; " if entry.trials else ""
        place = f"{entry.data}, {entry.method}"
        lines.append(f"  {place}: {tuning}{len(entry.final)} fits; {rounds:,} rounds; {done} finished")
    return "\n".join([*lines, f"  together {total:,} rounds"])


def measure_paces(table: Table, rounds: int = 2) -> dict[str, float]:
    """Return the seconds of a round on each data set, from a short fit of the baseline in this process."""
    paces = {}
    for name, data in table.data.items():
        trainer = {**data.trainer, "max_epochs": rounds, "check_val_every_n_epoch": rounds}
        short = replace(table, select="last", data={name: replace(data, trainer=trainer)})
        point = tuning_points(short, name, table.baseline, {})[0]
        cell = make_cell(short, name, table.baseline, table.folds[0], table.seeds[0], point)
        with tempfile.TemporaryDirectory() as folder:
            store = Store(folder)
            run_cell(store.task(cell, {}, checkpoint_seconds=1e9))
            paces[name] = (store.seconds(cell) or 0.0) / rounds
    return paces


def describe_time(table: Table, paces: Mapping[str, float], workers: int = 1) -> str:
    """Return how long a table would take at measured paces, as a text."""
    seconds = sum(paces[e.data] * sum(cell.max_epochs for cell in e.cells.values()) for e in planned(table))
    measured = ", ".join(f"{name} {pace:.2g} s" for name, pace in paces.items())
    return f"Measured seconds a round: {measured}. All fits will take about {duration(seconds / max(1, workers))}."
