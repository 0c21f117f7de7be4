"""The cells of a table: one fit each, known by the hash of its configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fl_lightning.experiment.search import Point, points, space_of
from fl_lightning.experiment.specs import identity, references, substitute
from fl_lightning.experiment.table import DataSet, Method, Table

Chosen = Mapping[tuple[str, str], Point]
"""The values chosen for (data set, method)."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One fit.

    Attributes:
        data: Name of the data set.
        method: Name of the method.
        fold: The fold.
        seed: The seed.
        values: The tuned values.
        config: All that the fit depends on, resolved; plain data.
    """

    data: str
    method: str
    fold: int
    seed: int
    values: Point
    config: dict[str, Any]

    @cached_property
    def id(self) -> str:
        """Hash of the configuration: a fit is known by what it depends on, not by its names."""
        return identity(self.config)

    @property
    def max_epochs(self) -> int:
        """Rounds of the fit."""
        return int(self.config["trainer"].get("max_epochs", 1000))  # Lightning's own default


def table_cells(table: Table, chosen: Chosen) -> list[Cell]:
    """Return the cells of the table, those of one data set, fold and seed together.

    Args:
        table: The table.
        chosen: The values of each method that is tuned, from :func:`tuning_points` and their scores.

    Raises:
        ValueError: If several folds are asked for and a data set does not use ``$fold``, or a value is missing.
    """
    return [
        make_cell(table, data, method, fold, seed, chosen.get((data, method), {}))
        for data in table.data
        for fold in table.folds
        for seed in table.seeds
        for method in table.methods
    ]


def tuning_cells(table: Table, data: str, method: str, point: Point) -> list[Cell]:
    """Return the cells that score one point of a method's search."""
    tuning = table.tuning
    return [
        make_cell(table, data, method, fold, seed, point, tuning.max_epochs)
        for fold in tuning.folds
        for seed in tuning.seeds
    ]


def tuning_points(table: Table, data: str, method: str, chosen: Chosen) -> list[Point]:
    """Return the points of a method's search on a data set; what is taken over from others is part of each.

    Raises:
        ValueError: If the search space is wrong, or a method from which values are taken has none of that name.
    """
    entry = table.methods[method]
    taken: Point = {}
    for name, source in entry.take.items():
        known = {**_values(table, data, table.methods[source]), **chosen.get((data, source), {})}
        if name not in known:
            raise ValueError(f"{method} takes {name} from {source}, which has no value of that name.")
        taken[name] = substitute(f"${name}", known)
    space = space_of(substitute(entry.tune, {**_values(table, data, entry), **taken}))
    tuning = table.tuning
    return [{**taken, **point} for point in points(space, tuning.search, tuning.count, tuning.seed)]


def levels(table: Table) -> Iterator[list[str]]:
    """Yield the methods in groups, each of which takes values from those before it alone.

    Raises:
        ValueError: If methods take values from each other in a circle.
    """
    left = dict(table.methods)
    while left:
        free = [name for name, method in left.items() if not set(method.take.values()) & set(left)]
        if not free:
            raise ValueError(f"The methods {', '.join(left)} take values from each other in a circle.")
        yield free
        left = {name: method for name, method in left.items() if name not in free}


@dataclass(frozen=True)
class Planned:
    """The fits of one method on one data set.

    Attributes:
        data: Name of the data set.
        method: Name of the method.
        num_points: Points of its search; 1 if nothing is tuned.
        trials: Fits of the search.
        final: Fits of the table; with the values of the first point, as long as none is chosen.
    """

    data: str
    method: str
    num_points: int
    trials: list[Cell]
    final: list[Cell]

    @property
    def cells(self) -> dict[str, Cell]:
        """All fits by their ids: one that is both a trial and final is run once."""
        return {cell.id: cell for cell in (*self.trials, *self.final)}


def planned(table: Table) -> list[Planned]:
    """Return all fits of a table, as if the first point of each search were chosen."""
    plan: list[Planned] = []
    chosen: dict[tuple[str, str], Point] = {}
    for methods in levels(table):
        for data in table.data:
            for method in methods:
                tried = tuning_points(table, data, method, chosen)
                chosen[data, method] = tried[0]
                trials = [cell for point in tried for cell in tuning_cells(table, data, method, point)]
                final = [make_cell(table, data, method, fold, s, tried[0]) for fold in table.folds for s in table.seeds]
                plan.append(Planned(data, method, len(tried), trials if len(tried) > 1 else [], final))
    return plan


def make_cell(
    table: Table, data: str, method: str, fold: int, seed: int, point: Point, max_epochs: int | None = None
) -> Cell:
    """Return one cell with its configuration resolved."""
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
    if len(table.folds) > 1 and "fold" not in references([data.datamodule, *data.values.values()]):
        raise ValueError(
            f"`folds` are {table.folds}, but the data set {name} does not depend on $fold, so that all would be the "
            "same. Give its data module a split with `fold: $fold`, or one fold."
        )
