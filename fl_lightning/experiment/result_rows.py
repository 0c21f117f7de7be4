"""The rows of a table's results, which a notebook shows as a table."""

from __future__ import annotations

from typing import Any

from fl_lightning.partitioners.notebook import as_table

_FIRST = ("data", "method", "fold", "seed", "status", "score")


class ResultRows(list[dict[str, Any]]):
    """A list with one dict for each cell, which shows itself in short."""

    def __repr__(self) -> str:
        finished = sum(row.get("status") == "finished" for row in self)
        return f"ResultRows({len(self)} rows, {finished} finished; each row is a dict)"

    def _repr_html_(self) -> str:
        known = {name: None for row in self for name in row}
        columns = [name for name in _FIRST if name in known]
        columns += [name for name in known if name.startswith("test_") and name not in columns]
        return as_table(([row.get(name, "") for name in columns] for row in self), columns)
