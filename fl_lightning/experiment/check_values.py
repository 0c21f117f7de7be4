"""Finds values of methods to which nothing refers, and metrics whose mode contradicts their name."""

from __future__ import annotations

from typing import Any

from fl_lightning.experiment.specs import references
from fl_lightning.experiment.table import Method, Table
from fl_lightning.metrics import suitable_mode

_WORDS = {"max": "largest", "min": "smallest"}


def unused_by_methods(table: Table) -> list[str]:
    """Return a sentence for each value that a method gives, tunes or takes, and to which nothing refers."""
    whole = table.whole  # a value may be that of a data set which the user has left out of this run
    found = []
    for name, method in table.methods.items():
        used = _used(whole, method)
        for entry in ("values", "tune", "take"):
            given = getattr(method, entry)
            found += [
                f"methods.{name}: `{entry}` has {value!r}, which has no effect: nothing has the text ${value}. Use it, "
                "or remove it."
                for value in (given if isinstance(given, dict) else ())
                if value not in used
            ]
    return found


def opposite_modes(table: Table) -> list[str]:
    """Return a sentence for each data set that keeps the models with the worst values of its metric."""
    found = []
    for name, data in table.data.items():
        suitable = suitable_mode(data.monitor, data.mode)
        if suitable is not None:
            found.append(
                f"data.{name}: the models and values with the {_WORDS[data.mode]} {data.monitor} are chosen, because "
                f"`mode` is {data.mode}. Give `mode: {suitable}`."
            )
    return found


def _used(table: Table, method: Method) -> set[str]:
    """Return all names to which the cells of a method refer, on some data set."""
    used: set[str] = set()
    for data in table.data.values():
        of_data = [data.datamodule, data.model, data.callbacks, data.trainer, data.metric]
        values = {**table.values, **data.values, **method.values}
        own = [method.callback, method.callbacks, method.tune]
        used |= _closure([table.callbacks, table.trainer, *own, *of_data], values)
    return used


def _closure(spec: Any, values: dict[str, Any]) -> set[str]:
    """Return all names to which a spec refers, itself or by way of values."""
    used: set[str] = set()
    todo = references(spec)
    while todo:
        name = todo.pop()
        if name not in used:
            used.add(name)
            todo |= references(values.get(name))
    return used
