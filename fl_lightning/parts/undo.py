"""Takes back what an aggregation kept of a round that broke off."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.parts.aggregation import Aggregation
from fl_lightning.plain_copies import plain_copy

_ABSENT = object()


class Undo:
    """Remembers an aggregation's attributes before its first result, and puts back those that results changed.

    Lists, tuples, dicts, sets, tensors and arrays are copied, with what is in them. Other objects, such as a running
    mean or the vectors of clients, forget a round in their own ``on_round_abort``. So an aggregation of a user needs
    none.

    Args:
        aggregation: The aggregation; others that it holds as attributes are remembered, too.
    """

    def __init__(self, aggregation: Aggregation) -> None:
        self._aggregation = aggregation
        self._before: list[tuple[Aggregation, dict[str, Any]]] = []
        self._knows_changes = False

    def remember(self) -> None:
        """Remember the attributes, unless they are remembered already; called before each result."""
        if not self._before:
            self._before = [
                (owner, {name: plain_copy(value) for name, value in vars(owner).items()})
                for owner in _with_wrapped(self._aggregation)
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


def _with_wrapped(aggregation: Aggregation) -> Iterator[Aggregation]:
    yield aggregation
    for value in vars(aggregation).values():
        if isinstance(value, Aggregation):
            yield from _with_wrapped(value)


def _changed(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of ``before`` that are not the same now; those that are new now are absent there."""
    names = [*before, *(name for name in now if name not in before)]
    pairs = ((name, before.get(name, _ABSENT)) for name in names)
    return {name: value for name, value in pairs if not _same(value, now.get(name, _ABSENT))}


def _same(before: Any, now: Any) -> bool:
    if before is now:
        return True
    if type(before) is not type(now):
        return False
    if isinstance(now, Tensor):
        return before.dtype == now.dtype and torch.equal(before, now)
    if isinstance(now, np.ndarray):
        return before.dtype == now.dtype and np.array_equal(before, now)
    if isinstance(now, dict):
        return list(before) == list(now) and all(map(_same, before.values(), now.values()))
    if isinstance(now, (list, deque)):
        return len(before) == len(now) and all(map(_same, before, now))
    return isinstance(now, (set, int, float, str)) and bool(before == now)
