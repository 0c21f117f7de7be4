"""What a table would take, before it is run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fl_lightning.experiment.plan import make_cell, planned, tuning_points
from fl_lightning.experiment.progress import duration
from fl_lightning.experiment.store import Store
from fl_lightning.experiment.table import Table
from fl_lightning.experiment.worker import run_safely


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


def measure_paces(table: Table, rounds: int = 3) -> tuple[dict[str, float], dict[str, str]]:
    """Return the seconds of a round on each data set, from a short fit of the baseline in this process.

    The first round, with all that is done once, does not count; the last one is validated.

    Returns:
        The paces, and for data sets on which it fails, for want of their files for instance, the error.
    """
    paces, errors = {}, {}
    for name, data in table.data.items():
        trainer = {**data.trainer, "max_epochs": rounds, "check_val_every_n_epoch": rounds}
        short = replace(table, select="last", data={name: replace(data, trainer=trainer)})
        point = tuning_points(short, name, table.baseline, {})[0]
        cell = make_cell(short, name, table.baseline, table.folds[0], table.seeds[0], point)
        ends: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            task = Store(folder).task(cell, {}, checkpoint_seconds=1e9)
            answer = run_safely(task, lambda done, ends=ends: ends.append(time.perf_counter()))
        if "error" in answer:
            errors[name] = answer["error"].strip().splitlines()[-1]
        else:
            paces[name] = (ends[-1] - ends[0]) / (rounds - 1)
    return paces, errors


def describe_time(table: Table, paces: Mapping[str, float], errors: Mapping[str, str], workers: int = 1) -> str:
    """Return how long a table would take at measured paces, and what could not be measured, as a text."""
    rounds = {name: 0 for name in table.data}
    for entry in planned(table):
        rounds[entry.data] += sum(cell.max_epochs for cell in entry.cells.values())
    seconds = sum(pace * rounds[name] for name, pace in paces.items()) / max(1, workers)
    measured = ", ".join(f"{name} {pace:.2g}" for name, pace in paces.items()) or "none"
    lines = [f"Measured seconds a round: {measured}. All fits will take about {duration(seconds)}."]
    return "\n".join([*lines, *(f"CANNOT RUN {name}: {error}" for name, error in errors.items())])
