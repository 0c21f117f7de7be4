"""What the attributes of a part hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

_Kind = TypeVar("_Kind")


def held_in(part: Any, kind: type[_Kind]) -> dict[str, _Kind]:
    """Return the distinct objects of a class in a part's attributes, by name, in the order of names.

    Args:
        part: The part. Parts of a user's own may hold them in a list, a tuple or a dict, too.
        kind: The class.
    """
    found: dict[str, _Kind] = {}
    for name, value in sorted(vars(part).items()):
        for key, item in [(name, value)] if part.is_of_library else _items(name, value):
            if isinstance(item, kind) and not any(item is known for known in found.values()):
                found[key] = item
    return found


def _items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield name, value
    inside: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        inside = value.items()
    elif isinstance(value, (list, tuple)):
        inside = enumerate(value)
    yield from ((f"{name}[{key!r}]", item) for key, item in inside if hasattr(item, "__dict__"))
