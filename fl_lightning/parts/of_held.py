"""Class attributes of parts whose values follow from the parts that they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


class OfHeld:
    """A class attribute whose value follows from the held parts of the same kind, unless a class or a part sets it.

    Args:
        joined: Makes the value of those of the held parts; of none, it is the default.
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
