"""A set that keeps nothing alive."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet


class Known(WeakSet[Any]):
    """Objects that are known as long as somebody else holds them; a pickle or a copy knows none."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Known, ()
