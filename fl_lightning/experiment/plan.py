"""The cells of a table. A cell is one fit, and its id is the hash of its configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fl_lightning.experiment.search import Point, Space, Tried, import_optuna, points, propose, space_of
from fl_lightning.experiment.specs import identity, substitute
from fl_lightning.experiment.table import DataSet, Method, Table

Chosen = Mapping[tuple[str, str], Point]
"""The tuned values by (data set, method)."""
_LIGHTNINGS_OWN = 1000  # rounds of a Trainer without `max_epochs`


@dataclass(frozen=True, eq=False)
class Cell:
    """One fit.

    Attributes:
        data: Name of the data set.
        method: Name of the method.
        fold: The fold.
        seed: The seed.
        values: The tuned values.
        config: The complete configuration of the fit, as plain data without references.
    """

    data: str
    method: str
    fold: int
    seed: int
    values: Point
    config: dict[str, Any]

    @cached_property
    def id(self) -> str:
        """Hash of the configuration; the names of data set and method are no part of it."""
        return identity(self.config)

    @property
    def max_epochs(self) -> int:
        """Number of rounds of the fit; 0 if something else than their number ends it."""
        return rounds_of(self.config["trainer"]) or 0


def rounds_of(trainer: dict[str, Any]) -> int | None:
    """Return the number of rounds that a Trainer's arguments ask for; ``None`` if something else ends the fit."""
    rounds = trainer.get("max_epochs")
    if rounds is None:
        ends = trainer.get("max_time") is not None or trainer.get("max_steps", -1) != -1
        return None if ends else _LIGHTNINGS_OWN
    return None if rounds < 0 else int(rounds)


def table_cells(table: Table, chosen: Chosen) -> list[Cell]:
    """Return the cells of a table; the cells of one data set, fold and seed follow each other.

    Args:
        table: The table.
        chosen: The values that the searches have chosen.

    Raises:
        ValueError: If the table has several folds and a data set does not use ``$fold``, or if a value is missing.
    """
    return [
        make_cell(table, data, method, fold, seed, chosen.get((data, method), {}))
        for data in table.data
        for fold in table.folds
        for seed in table.seeds
        for method in table.methods
    ]


def tuning_cells(
    table: Table, data: str, method: str, point: Point, number: int = 0, tried: Sequence[Tried] = ()
) -> list[Cell]:
    """Return the cells that score one point of the search of a method.

    Args:
        table: The table.
        data: Name of the data set.
        method: Name of the method.
        point: The point.
        number: Its number in the search.
        tried: The points before those that run together with this one; a fit is pruned by theirs.
    """
    tuning = table.tuning
    cells = [
        make_cell(table, data, method, fold, seed, point, tuning.max_epochs)
        for fold in tuning.folds
        for seed in tuning.seeds
    ]
    if tuning.pruner == "none":
        return cells
    import_optuna(f"`pruner: {tuning.pruner}`")
    orders = [
        {"pruner": tuning.pruner, "number": number, "earlier": [each.fits[place] for each in tried]}
        for place in range(len(cells))
    ]
    return [replace(cell, config={**cell.config, "pruning": order}) for cell, order in zip(cells, orders, strict=True)]


def tuning_points(table: Table, data: str, method: str, chosen: Chosen) -> list[Point]:
    """Return the points of the search of a method on a data set; those of ``"tpe"`` are as if no point had a score.

    Each point includes the values that the method takes from other methods. A grid that is pruned is in random order: a
    pruner keeps what is better than before, and in an ordered grid that may be every point.

    Raises:
        ValueError: If the search space is wrong, or another method lacks a value that this one takes.
    """
    taken, space = _space(table, data, method, chosen)
    tuning = table.tuning
    found = points(space, tuning.search, tuning.count, tuning.seed)
    if tuning.search == "grid" and tuning.pruner != "none":
        np.random.default_rng(tuning.seed).shuffle(found)
    return [{**taken, **point} for point in found]


def next_points(table: Table, data: str, method: str, chosen: Chosen, tried: Sequence[Tried]) -> list[Point]:
    """Return the points of a search that run together after those that were tried; none after the last."""
    tuning = table.tuning
    left = tuning_points(table, data, method, chosen)[len(tried) :]
    if tuning.search == "tpe":
        taken, space = _space(table, data, method, chosen)
        count = min(tuning.at_once, len(left))
        found = propose(space, tried, count, tuning.seed, table.data[data].mode)
        return [{**taken, **point} for point in found]
    return left if tuning.pruner == "none" else left[: tuning.at_once]


def _space(table: Table, data: str, method: str, chosen: Chosen) -> tuple[Point, Space]:
    """Return the values that a method takes from others, and the space of its search."""
    entry = table.methods[method]
    taken: Point = {}
    for name, source in entry.take.items():
        known = {**_values(table, data, table.methods[source]), **chosen.get((data, source), {})}
        if name not in known:
            raise ValueError(
                f"{method} takes {name} from {source}, which has no value of that name. Give {source} the value "
                f"in `tune` or `values`."
            )
        taken[name] = substitute(f"${name}", known)
    return taken, space_of(substitute(entry.tune, {**_values(table, data, entry), **taken}))


def levels(table: Table) -> Iterator[list[str]]:
    """Yield the methods in groups; a group takes values only from earlier groups.

    Raises:
        ValueError: If methods take values from each other in a circle.
    """
    left = dict(table.methods)
    while left:
        free = [name for name, method in left.items() if not set(method.take.values()) & set(left)]
        if not free:
            raise ValueError(
                f"The methods {', '.join(left)} take values from each other in a circle. Give one of them values "
                "of its own."
            )
        yield free
        left = {name: method for name, method in left.items() if name not in free}


@dataclass(frozen=True)
class Planned:
    """The fits of one method on one data set.

    Attributes:
        data: Name of the data set.
        method: Name of the method.
        num_points: Number of points of the search; 1 if nothing is tuned.
        trials: Fits of the search.
        final: Fits of the table, with the values of the first point of the search.
    """

    data: str
    method: str
    num_points: int
    trials: list[Cell]
    final: list[Cell]

    @property
    def cells(self) -> dict[str, Cell]:
        """All fits by their ids; a fit that is both a trial and final runs once."""
        return {cell.id: cell for cell in (*self.trials, *self.final)}


def planned(table: Table) -> list[Planned]:
    """Return all fits of a table, with the first point of each search as the chosen one, as if none were pruned."""
    plan: list[Planned] = []
    chosen: dict[tuple[str, str], Point] = {}
    for methods in levels(table):
        for data in table.data:
            for method in methods:
                tried = tuning_points(table, data, method, chosen)
                chosen[data, method] = tried[0]
                trials = [cell for i, point in enumerate(tried) for cell in tuning_cells(table, data, method, point, i)]
                final = [make_cell(table, data, method, fold, s, tried[0]) for fold in table.folds for s in table.seeds]
                plan.append(Planned(data, method, len(tried), trials if len(tried) > 1 else [], final))
    return plan


def make_cell(
    table: Table, data: str, method: str, fold: int, seed: int, point: Point, max_epochs: int | None = None
) -> Cell:
    """Return one cell, with values instead of references in its configuration."""
    data_set, entry = table.data[data], table.methods[method]
    _check_fold(table, data, data_set)
    values = {**_values(table, data, entry), **point, "fold": fold, "seed": seed}
    trainer = {**table.trainer, **data_set.trainer}
    if max_epochs is not None:
        trainer["max_epochs"] = max_epochs
    config = {
        "datamodule": data_set.datamodule,
        "model": data_set.model,
        "callback": entry.callback,
        "callbacks": [*table.callbacks, *data_set.callbacks, *entry.callbacks],
        "trainer": trainer,
        "metric": data_set.metric,
        "monitor": data_set.monitor,
        "mode": data_set.mode,
        "select": table.select,
        "validate_on_test": data_set.validate_on_test,
        "seed": seed,
    }
    return Cell(data, method, fold, seed, point, substitute(config, values))


def _values(table: Table, data: str, method: Method) -> dict[str, Any]:
    return {**table.values, **table.data[data].values, **method.values}


def _check_fold(table: Table, name: str, data: DataSet) -> None:
    if len(table.folds) > 1 and not data.uses_fold:
        raise ValueError(
            f"`folds` are {table.folds}, but the data set {name} does not depend on $fold, so that all folds would be "
            "the same. Give its data module a split with `fold: $fold`, or the table a single fold."
        )
