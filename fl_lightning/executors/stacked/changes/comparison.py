"""Comparison of snapshots, and the parts that snapshots are made of."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor


class ByIdentity(NamedTuple):
    """Something that is compared by identity."""

    place: int
    kind: str

    @classmethod
    def of(cls, value: Any) -> ByIdentity:
        """Return what stands for a value; of a class or function its name is kept."""
        named = value if issubclass(type(value), (type, FunctionType)) else type(value)
        return cls(id(value), f"{named.__module__}.{named.__qualname__}")


class Code(NamedTuple):
    """A function or class, and what it reaches."""

    identity: ByIdentity
    reached: Any

    @property
    def by_name(self) -> dict[str, Any]:
        """The snapshots of everything that it reaches, by name, as far as the snapshotter looked."""
        return dict(self.reached[1]) if isinstance(self.reached, tuple) and self.reached[0] is dict else {}


def same(before: Any, after: Any) -> bool:
    """Whether two snapshots are equal; NaN equals NaN."""
    if type(before) is not type(after):
        return False
    if isinstance(before, Tensor):
        if before.shape != after.shape or before.dtype != after.dtype or before.device != after.device:
            return False
        equal = before == after
        return bool((equal | ((before != before) & (after != after))).all())
    if isinstance(before, np.ndarray):
        return bool(before.dtype == after.dtype and before.tobytes() == after.tobytes())
    if isinstance(before, (tuple, list)):
        return len(before) == len(after) and all(map(same, before, after))
    return before is after or bool(before == after) or bool(before != before and after != after)


def changed_name(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return the name of something that is another in later snapshots, ``None`` if nothing is.

    Where a function or class reaches it, such as a global, it is the name by which its code does.
    """
    for name in [*(before.keys() ^ now.keys()), *before]:
        if name not in now or name not in before:
            return f"`{name}`"
        if not same(before[name], now[name]):
            return _reached_by_code(before[name], now[name]) or f"`{name}`"
    return None


def _reached_by_code(before: Any, now: Any) -> str | None:
    if isinstance(before, Code) and isinstance(now, Code) and before.identity == now.identity:
        return changed_name(before.by_name, now.by_name)
    if not isinstance(before, (tuple, list)) or type(before) is not type(now) or len(before) != len(now):
        return None
    return next(
        (_reached_by_code(one, other) for one, other in zip(before, now, strict=True) if not same(one, other)), None
    )
