"""The cells of a table. A cell is one fit, and its id is the hash of its configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from itertools import chain, product
from typing import Any

from fl_lightning.experiment.build import identity, substitute
from fl_lightning.experiment.search import Point, Search, describe_point, space_of
from fl_lightning.experiment.table import Table
from fl_lightning.words import quantity


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
        """Number of rounds of the fit; 1 of a program in a sweep."""
        return int(self.config.get("trainer", {}).get("max_epochs", 1))


def table_cells(table: Table, searches: Sequence[MethodSearch]) -> list[Cell]:
    """Return the cells of a table with the values that its searches have chosen.

    The cells of one data set, fold and seed follow each other.
    """
    by_place = {(search.data, search.method): search for search in searches}
    cells = []
    for data, fold, seed, method in product(table.data, table.folds, table.seeds, table.methods):
        cells.append(by_place[data, method].chosen_cell(fold, seed))
    return cells


class MethodSearch(Search):
    """The search for the values of a method on a data set.

    A grid that is pruned is in random order: a pruner keeps what is better than before, and in an ordered grid that may
    be every point.

    Args:
        table: The table.
        data: Name of the data set.
        method: Name of the method.
        sources: The searches for the methods on this data set from which this one may take values.

    Raises:
        ValueError: If the search space is wrong, or another method lacks a value that this one takes.
    """

    def __init__(self, table: Table, data: str, method: str, sources: Mapping[str, MethodSearch]) -> None:
        entry = table.methods[method]
        tuning = table.tuning
        self.table = table
        self.data = data
        self.method = method
        self.values = {**table.values, **table.data[data].values, **entry.values}
        taken: Point = {}
        for name, source in entry.take.items():
            known = {**sources[source].values, **sources[source].chosen}
            if name not in known:
                raise ValueError(
                    f"`take` of {method} has {name}, of which {source} has no value in `tune` or `values`."
                )
            taken[name] = substitute(f"${name}", known)
        prunes = tuning.pruner != "none"
        learns = tuning.search == "tpe" or prunes
        try:
            super().__init__(
                space=space_of(substitute(entry.tune, {**self.values, **taken})),
                kind=tuning.search,
                count=tuning.count,
                seed=tuning.seed,
                mode=table.data[data].mode,
                at_once=tuning.at_once if learns else None,
                taken=taken,
                shuffled=prunes,
            )
        except (TypeError, ValueError) as error:
            raise ValueError(f"`tune` of {method} on {data}: {error}") from error

    def cells(self, point: Point, number: int) -> list[Cell]:
        """Return the fits that score a point; those of points before may prune them."""
        tuning = self.table.tuning
        cells = []
        for place, (fold, seed) in enumerate(product(tuning.folds, tuning.seeds)):
            cell = self.cell(fold, seed, point, tuning.max_epochs)
            if tuning.pruner != "none":
                # Each fit is compared with those of the same fold and seed.
                earlier = [each.fits[place] for each in self.tried]
                cell.config["pruning"] = {"pruner": tuning.pruner, "number": number, "earlier": earlier}
            cells.append(cell)
        return cells

    @property
    def chosen(self) -> Point:
        """The point with the best score; the first one if none has a score."""
        best = self.best()
        return self.points[0] if best is None else best.point

    def cell(self, fold: int, seed: int, point: Point, max_epochs: int | None = None) -> Cell:
        """Return the fit of a fold and a seed, with values instead of references in its configuration."""
        table = self.table
        data = table.data[self.data]
        method = table.methods[self.method]
        trainer = {**table.trainer, **data.trainer}
        if max_epochs is not None:
            trainer["max_epochs"] = max_epochs
        config = {
            "datamodule": data.datamodule,
            "model": data.model,
            "callback": method.callback,
            "callbacks": [*table.callbacks, *data.callbacks, *method.callbacks],
            "trainer": trainer,
            "metric": data.metric,
            "monitor": data.monitor,
            "mode": data.mode,
            "select": table.select,
            "among": table.among,
            "validate_on_test": data.validate_on_test,
            "seed": seed,
        }
        values = {**self.values, **point, "fold": fold, "seed": seed}
        return Cell(self.data, self.method, fold, seed, point, substitute(config, values))

    def chosen_cell(self, fold: int, seed: int) -> Cell:
        """Return the cell of a fold and a seed, with the chosen values."""
        cell = self.cell(fold, seed, self.chosen)
        # A cell that has finished without its model is another one, so that it is not taken for one that has it.
        if self.table.keep_models:
            cell.config["keep_model"] = True
        return cell

    @property
    def trials(self) -> list[Cell]:
        """All fits of the search, as if none were pruned; none if nothing is tuned."""
        trials: list[Cell] = []
        if len(self.points) > 1:
            for number, point in enumerate(self.points):
                trials += self.cells(point, number)
        return trials

    @property
    def final(self) -> list[Cell]:
        """The fits of the table, with the chosen values."""
        return [self.chosen_cell(fold, seed) for fold, seed in product(self.table.folds, self.table.seeds)]

    @property
    def fits(self) -> dict[str, Cell]:
        """All fits by their ids; a fit that is both a trial and final runs once."""
        return {cell.id: cell for cell in (*self.trials, *self.final)}

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of ``tuning.csv``; if no point has a score, the first one is taken."""
        rows: list[dict[str, Any]] = []
        for number, each in enumerate(self.tried):
            row = {
                "data": self.data,
                "method": self.method,
                "point": number,
                "values": json.dumps(each.point, sort_keys=True),
                "val": each.score,
                "fits": each.finite,
                "chosen": "",
                "error": each.error,
            }
            rows.append(row)
        best = self.best()
        if best is not None:
            rows[self.tried.index(best)]["chosen"] = "yes"
        elif rows:
            rows[0]["chosen"] = "no score"
        return rows

    def describe(self) -> str:
        """Return a sentence on the point that is chosen, and why."""
        best = self.best()
        pruned = [each for each in self.tried if each.pruned]
        errors = [each.error for each in self.tried if each.score is None]
        place = f"Chosen for {self.method} on {self.data}"
        if best is None:
            return f"{place}: {describe_point(self.chosen)} (no point has a validation score: {errors[0]})."
        samples = "the test set" if self.table.data[self.data].validate_on_test else "validation"
        reason = f"{best.score:.4f} on {samples}, of {quantity(len(self.tried), 'point')}"
        if pruned:
            reason += f", {len(pruned)} of them pruned"
        if errors:
            reason += f"; {len(errors)} without a score: {errors[0]}"
        return f"{place}: {describe_point(best.point)} ({reason}).{self.note_of_equals()}"


def levels(table: Table) -> Iterator[list[MethodSearch]]:
    """Yield the searches of a table in groups.

    A group takes the values that earlier groups have chosen when it is asked for.

    Raises:
        CycleError: If methods take values from each other in a cycle; it is a ``ValueError``.
    """
    sorter = TopologicalSorter({name: method.take.values() for name, method in table.methods.items()})
    sorter.prepare()
    earlier: dict[str, dict[str, MethodSearch]] = {data: {} for data in table.data}
    while sorter.is_active():
        free = sorter.get_ready()
        # The order of the table, which a set of names has not.
        names = [name for name in table.methods if name in free]
        searches = []
        for data in table.data:
            for name in names:
                searches.append(MethodSearch(table, data, name, earlier[data]))
        for search in searches:
            earlier[search.data][search.method] = search
        yield searches
        sorter.done(*free)


def planned(table: Table) -> list[MethodSearch]:
    """Return all searches of a table before any of them has begun, each with its first point as the chosen one."""
    return list(chain.from_iterable(levels(table)))
