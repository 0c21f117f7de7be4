"""Takes back what an aggregation kept of a round that broke off."""

from __future__ import annotations

from typing import Any

from fl_lightning.parts.aggregation import Aggregation
from fl_lightning.parts.part import Part
from fl_lightning.plain_copies import plain_copy, same_content

_ABSENT = object()


class Undo:
    """Remembers an aggregation's attributes before its first result, and puts back those that results changed.

    Lists, tuples, dicts, sets, tensors and arrays are copied, with what is in them. Other objects, such as a running
    mean or the vectors of clients, forget a round in their own ``on_round_abort``. So an aggregation of a user needs
    none.

    Args:
        aggregation: The aggregation; parts that it holds are remembered, too.
    """

    def __init__(self, aggregation: Aggregation) -> None:
        self._aggregation = aggregation
        self._before: list[tuple[Part, dict[str, Any]]] = []
        self._knows_changes = False

    def remember(self) -> None:
        """Remember the attributes, unless they are remembered already; called before each result."""
        if not self._before:
            self._before = [
                (owner, {name: plain_copy(value) for name, value in vars(owner).items()})
                for owner in self._aggregation.with_held_parts
            ]

    def end_results(self) -> None:
        """Regard further changes as the aggregation's own; called before results are merged."""
        self._before = [(owner, _changed(before, vars(owner))) for owner, before in self._before]
        self._knows_changes = True

    def forget(self) -> None:
        """Forget everything, since the results are merged."""
        self._before, self._knows_changes = [], False

    def put_back(self) -> None:
        """Put back the attributes that results changed."""
        if not self._knows_changes:
            self.end_results()
        for owner, before in self._before:
            for name, value in before.items():
                vars(owner).pop(name, None)
                if value is not _ABSENT:
                    vars(owner)[name] = value
        self.forget()


def _changed(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of ``before`` that are not the same now; those that are new now are absent there."""
    names = [*before, *(name for name in now if name not in before)]
    pairs = ((name, before.get(name, _ABSENT)) for name in names)
    return {name: value for name, value in pairs if not same_content(value, now.get(name, _ABSENT))}
