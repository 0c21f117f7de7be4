"""Checks that parts which users give are of the kinds that are asked for."""

from __future__ import annotations

from typing import Any

_EXAMPLES = {
    "Aggregation": "Median()",
    "ClientSampler": "UniformSampler(0.1)",
    "LocalObjective": "Proximal(0.01)",
    "Participation": "Participation(available=0.5)",
    "ServerOptimizer": "Momentum(0.9)",
}


def check_part(name: str, part: Any, kind: type) -> Any:
    """Return a part; raise ``TypeError`` if it has the wrong type."""
    if not isinstance(part, kind):
        hint = f" Call it: {part.__name__}(...)." if isinstance(part, type) and issubclass(part, kind) else ""
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        such = f", such as {_EXAMPLES[kind.__name__]}" if kind.__name__ in _EXAMPLES else ""
        raise TypeError(f"`{name}` must be {article} {kind.__name__} of fl_lightning.parts{such}, got {part!r}.{hint}")
    return part
