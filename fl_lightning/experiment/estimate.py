"""The plan of a table and an estimate of its time, before it is run."""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lightning.pytorch.callbacks import LambdaCallback

from fl_lightning.experiment.cell import CellJob, run_cell
from fl_lightning.experiment.check import refuse_mistakes
from fl_lightning.experiment.plan import planned
from fl_lightning.experiment.statistics import pairs_needed, smallest_p
from fl_lightning.experiment.store import Store, message_of
from fl_lightning.experiment.table import Table
from fl_lightning.words import duration, quantity


def describe_plan(table: Table, folder: str | Path, *, with_data: bool = False) -> str:
    """Return the number of fits and rounds of each method and data set, and of the fits that a folder has finished.

    A search has not chosen its values yet, so the cells of the table are counted with the values of its first point.

    Args:
        table: The table.
        folder: Folder of the results.
        with_data: Whether to check the data too; see :func:`check_table`.

    Raises:
        ValueError: With all mistakes of the table; the objects of every cell are built.
    """
    notes = refuse_mistakes(table, with_data=with_data)
    store = Store(folder)
    lines = [f"{table.name}: {quantity(len(table.folds), 'fold')} x {quantity(len(table.seeds), 'seed')}"]
    total = 0
    for search in planned(table):
        fits = search.fits.values()
        trials = search.trials
        done = sum(store.result(cell) is not None for cell in fits)
        rounds = sum(cell.max_epochs for cell in fits)
        total += rounds
        tuned = ""
        if trials:
            tuned = f"{quantity(len(search.points), 'point')}, {quantity(len(trials), 'fit')} to tune; "
        final = f"{quantity(len(search.final), 'fit')}; {quantity(rounds, 'round')}; {done} finished"
        lines.append(f"  {search.data}, {search.method}: {tuned}{final}")
    lines.append(f"  together {quantity(total, 'round')}")
    return "\n".join([*lines, *_describe_power(table), *notes])


def _describe_power(table: Table) -> list[str]:
    """Return how many seeds and data sets the tests of the report need; nothing if there is nothing to compare."""
    methods = len(table.methods) - 1
    if methods == 0:
        return []
    folds = len(table.folds)
    pairs = folds * len(table.seeds)
    smallest = smallest_p(pairs)
    found = f"the smallest p is {smallest:.2g}"
    if methods > 1:
        found += f", {min(1.0, methods * smallest):.2g} corrected for {quantity(methods, 'method')}"
    needed = pairs_needed(methods)
    if pairs < needed:
        # A fold gives a pair for each seed.
        seeds = math.ceil(needed / folds)
        found += f". NO DIFFERENCE CAN BE SIGNIFICANT: it takes {quantity(seeds, 'seed')}"
        if folds > 1:
            found += f" in {quantity(folds, 'fold')}"
    lines = [f"Significance on a data set, by {quantity(pairs, 'pair')} of runs with {table.baseline}: {found}."]
    blocks = len(table.data)
    if blocks < pairs_needed():
        lines.append(
            f"Significance over data sets: it takes {pairs_needed()} of one metric, and the table has {blocks}."
        )
    else:
        lines.append(f"Significance over {blocks} data sets: the smallest p is {smallest_p(blocks):.2g}.")
    return lines


def measure_paces(table: Table, rounds: int = 4) -> tuple[dict[str, float], dict[str, str]]:
    """Measure the seconds of a round on each data set by a short fit of the baseline in this process.

    The first round does not count, because it includes work that is done once. The last one alone is validated, and
    its additional time counts as often as the table validates.

    Args:
        table: The table.
        rounds: Length of the fit, at least 3.

    Returns:
        The seconds of a round by data set, and the errors of data sets on which the fit fails; their files may be
        missing, for instance.
    """
    paces: dict[str, float] = {}
    errors: dict[str, str] = {}
    for name, data in table.data.items():
        settings = {**table.trainer, **data.trainer}
        every = int(settings.get("check_val_every_n_epoch") or 1)
        # One validation, after the last round.
        trainer = {**data.trainer, "max_epochs": int(rounds), "check_val_every_n_epoch": int(rounds)}
        short = replace(table, select="last", data={name: replace(data, trainer=trainer)})
        [search] = [search for search in planned(short) if search.method == table.baseline]
        cell = search.final[0]
        # When the rounds end.
        ends: list[float] = []
        clock = LambdaCallback(on_train_epoch_end=lambda *_, ends=ends: ends.append(time.perf_counter()))
        try:
            with tempfile.TemporaryDirectory() as temporary:
                run_cell(CellJob(cell, Path(temporary), checkpoint_seconds=1e9), [clock])
        except Exception as error:
            errors[name] = message_of(error)
            continue
        plain = (ends[-2] - ends[0]) / (rounds - 2)
        validation = max(0.0, ends[-1] - ends[-2] - plain)
        paces[name] = plain + validation / every
    return paces, errors


def describe_time(table: Table, paces: Mapping[str, float], errors: Mapping[str, str], workers: int = 1) -> str:
    """Return a string with the time that a table would take, and with the data sets that cannot be run.

    Args:
        table: The table.
        paces: Seconds of a round by data set, from :func:`measure_paces`.
        errors: Errors by data set, from :func:`measure_paces`.
        workers: Number of worker processes.
    """
    lines = [f"CANNOT RUN {name}: {error}" for name, error in errors.items()]
    if not paces:
        return "\n".join(["Nothing has been measured, so the time is not known.", *lines])
    rounds: Counter[str] = Counter()
    for search in planned(table):
        rounds[search.data] += sum(cell.max_epochs for cell in search.fits.values())
    seconds = sum(pace * rounds[name] for name, pace in paces.items()) / max(1, workers)
    measured = ", ".join(f"{name} {pace:.2g}" for name, pace in paces.items())
    text = f"Measured seconds a round: {measured}. All fits on {', '.join(paces)} will take about {duration(seconds)}."
    return "\n".join([text, *lines])
