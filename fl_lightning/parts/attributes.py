"""Finds objects of a class in the attributes of a part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, TypeVar

_Kind = TypeVar("_Kind")


def held_in(part: Any, kind: type[_Kind]) -> dict[str, _Kind]:
    """Return the distinct objects of a class in a part's attributes, by name, in the order of names.

    Args:
        part: The part. Parts of a user's own may hold them in a list, a tuple or a dict, too.
        kind: The class.
    """
    pairs: Iterable[tuple[str, Any]] = vars(part).items()
    if not part.is_of_library:
        pairs = (pair for name, value in pairs for pair in _items(name, value))
    found: dict[str, _Kind] = {}
    for name, item in sorted((pair for pair in pairs if isinstance(pair[1], kind)), key=itemgetter(0)):
        if not any(item is known for known in found.values()):
            found[name] = item
    return found


def _items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield name, value
    inside: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, (list, tuple)):
        inside = enumerate(value)
    yield from ((f"{name}[{key!r}]", item) for key, item in inside if hasattr(item, "__dict__"))
