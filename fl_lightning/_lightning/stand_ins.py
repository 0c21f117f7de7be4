"""Stand-ins for values of several clients that step at once: none may be left in a user's objects."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

_StandIn = TypeVar("_StandIn")
_Made = tuple["weakref.ref[Any]", Callable[[Any], Any]]
_MOST = 10_000  # that are noted before the dead ones are dropped


class _OfThread(threading.local):
    """The stand-ins that have been made in this thread."""

    def __init__(self) -> None:
        self.made: list[_Made] = []
        self.most = _MOST


_here = _OfThread()


def register_stand_in(value: _StandIn, plain: Callable[[_StandIn], Any]) -> _StandIn:
    """Note and return a stand-in.

    Args:
        value: The stand-in.
        plain: Returns what one client would have seen, for somebody who has kept it.
    """
    _here.made.append((weakref.ref(value), plain))
    if len(_here.made) > _here.most:
        _here.made = [entry for entry in _here.made if entry[0]() is not None]
        _here.most = 2 * len(_here.made) + _MOST
    return value


def release_stand_ins(values: Any) -> None:
    """Let values be kept: they belong to the library."""
    own = set(map(id, values))
    _here.made = [entry for entry in _here.made if id(entry[0]()) not in own]


def replace_kept_stand_ins() -> bool:
    """Replace all stand-ins that somebody has kept by one client's values; return whether there are any.

    To be called when none is needed any more: after the backward passes.
    """
    made, _here.made, _here.most = _here.made, [], _MOST
    if all(entry[0]() is None for entry in made):
        return False
    gc.collect()  # those in cycles, which nobody holds
    living = {id(value): (value, plain) for ref, plain in made if (value := ref()) is not None}
    _replace({key: (value, plain(value)) for key, (value, plain) in living.items()})
    return bool(living)


def _replace(values: dict[int, tuple[Any, Any]]) -> None:
    """Put new values in the place of old ones wherever they are held: by identities, old and new ones."""
    if not values:
        return
    tuples: dict[int, tuple[Any, Any]] = {}
    own = {id(values), *map(id, values.values())}
    for holder in gc.get_referrers(*(old for old, _ in values.values())):
        if id(holder) in own:
            continue
        if isinstance(holder, tuple):
            new = (values[id(held)][1] if id(held) in values else held for held in holder)
            tuples[id(holder)] = holder, tuple.__new__(type(holder), new)
        with suppress(Exception):  # whatever an object of another kind does not let happen
            held_by = holder if isinstance(holder, (dict, list, deque)) else vars(holder)
            places = enumerate(held_by) if isinstance(held_by, (list, deque)) else held_by.items()
            for key, held in list(places):
                if id(held) in values:
                    held_by[key] = values[id(held)][1]
    _replace(tuples)
