"""Finds the parts in a part's attributes, and gives class attributes the values that follow from these parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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


class OfHeld:
    """A class attribute whose value follows from the held parts of the same kind, unless a class or a part sets it.

    Args:
        joined: Makes one value of the held parts' values; with no held part, it gives the default.
    """

    def __init__(self, joined: Callable[[Iterable[Any]], Any]) -> None:
        self._joined = joined
        self._name = ""
        self._kind: type = object

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self._kind = name, owner

    def __get__(self, part: Any, owner: type) -> Any:
        held = () if part is None else part.held_parts
        return self._joined(getattr(each, self._name) for each in held if isinstance(each, self._kind))


def flag_of_held() -> Any:
    """Return a flag that is raised if a held part raises it."""
    return OfHeld(any)


def vectors_of_held() -> Any:
    """Return a number of vectors that are sent: the model, and those that held parts send beside it."""
    return OfHeld(lambda numbers: 1 + sum(number - 1 for number in numbers))
