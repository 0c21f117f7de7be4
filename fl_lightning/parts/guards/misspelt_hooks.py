"""Finds the names of a class that are nearly those of its base classes: hooks that would never be called."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

_LEAST_LIKENESS = 0.8
_MOST_LETTERS = 2  # by which the names' lengths differ


def refuse_misspelt(cls: type, root: type) -> None:
    """Raise ``TypeError`` if a class has a method, or a flag, whose public name is nearly one of its base classes'.

    A name that begins with the other one, as ``uploaded`` with ``upload``, is regarded as another word.

    Args:
        cls: The class, just made.
        root: The base class of all that have hooks.
    """
    bases = [base for base in cls.__mro__[1:] if issubclass(base, root)]
    inherited = {name for base in cls.__mro__[1:] for name in vars(base)}
    for name in sorted(vars(cls).keys() - inherited):
        kind = _kind(name, vars(cls)[name])
        known = {other for base in bases for other, value in vars(base).items() if _kind(other, value) == kind}
        near = [other for other in known - vars(cls).keys() if abs(len(other) - len(name)) <= _MOST_LETTERS]
        close = get_close_matches(name, near, n=1, cutoff=_LEAST_LIKENESS)
        if kind and close and not name.startswith(close[0]):
            raise TypeError(
                f"`{cls.__name__}.{name}` would never be used: {bases[0].__name__} has no such name. Did you mean "
                f"`{close[0]}`? Methods of your own may have any other name, or one that begins with an underscore."
            )


def _kind(name: str, value: Any) -> str:
    """Return ``"method"``, ``"flag"``, or nothing for names of one's own."""
    if name.startswith("_"):
        return ""
    if isinstance(value, bool):
        return "flag"
    return "method" if callable(value) or isinstance(value, (property, classmethod, staticmethod)) else ""
