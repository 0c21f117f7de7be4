"""Finds the names of a class that are nearly those of its base classes: hooks that would never be called."""

from __future__ import annotations

from difflib import get_close_matches

_LEAST_LIKENESS = 0.8


def refuse_misspelt(cls: type, root: type) -> None:
    """Raise ``TypeError`` if a class defines a public name that is nearly one of its base classes.

    A name of which the base class's is the beginning, as ``uploaded`` and ``upload``, is regarded as another one.

    Args:
        cls: The class, just made.
        root: The base class of all that have hooks.
    """
    bases = [base for base in cls.__mro__[1:] if issubclass(base, root)]
    known = {name for base in bases for name in vars(base) if not name.startswith("_")}
    own = {name for name in vars(cls) if not name.startswith("_")}
    inherited = {name for base in cls.__mro__[1:] for name in vars(base)}
    for name in sorted(own - inherited):
        close = get_close_matches(name, known - own, n=1, cutoff=_LEAST_LIKENESS)
        if close and not name.startswith(close[0]):
            raise TypeError(
                f"`{cls.__name__}.{name}` would never be called: {bases[0].__name__} has no such name. Did you mean "
                f"`{close[0]}`? Another name, or one with an underscore in front, is free for methods of your own."
            )
