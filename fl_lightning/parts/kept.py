"""Kept state: how a round that breaks off leaves no trace.

Between two rounds lies a boundary. Whatever a round may change keeps its state there, and has three methods, as this
counter of clients has::

    class Counter:
        number = 0

        def keep(self):
            self._kept = self.number

        def put_back(self):
            self.number = self._kept

        def state_dict(self):
            return {"number": self._kept}

A round begins with ``keep()`` for each of them. If it breaks off, ``put_back()`` follows for each, in reverse order. A
round that is done makes its end the next boundary, by ``keep()`` again. A checkpoint is the union of the
``state_dict()``s, so one that is written inside a round is that of the boundary before it.

States are kept by reference: tensors are assigned, and never written to. Only containers are copied.
"""

from __future__ import annotations

from typing import Any, Protocol


class Kept(Protocol):
    """Something that a round may change."""

    def keep(self) -> None:
        """Make the present state the boundary's."""

    def put_back(self) -> None:
        """Return to the boundary's state, if need be several times."""

    def state_dict(self) -> dict[str, Any]:
        """Return the boundary's state for a checkpoint."""


def snapshot(value: Any) -> Any:
    """Return a copy of containers and arrays, with the same tensors and records in them."""
    if isinstance(value, dict):
        return {key: snapshot(item) for key, item in value.items()}
    if isinstance(value, list):
        return [snapshot(item) for item in value]
    return value.copy() if hasattr(value, "copy") else value
