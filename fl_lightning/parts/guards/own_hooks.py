"""Finds the mistakes in a part of a user's own that would show only when it is called, or never."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from inspect import Parameter
from typing import Any

from fl_lightning.super_calls import is_of_library

_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
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


def refuse_reserved(cls: type, reserved: Iterable[str]) -> None:
    """Raise ``TypeError`` if a class replaces a method that only the library calls.

    Args:
        cls: The class, just made.
        reserved: The names of such methods.
    """
    for name in reserved:
        if name in vars(cls):
            raise TypeError(
                f"`{cls.__name__}.{name}` replaces a method of the library that no part may replace. Give it another "
                "name; to save a state, define `state_dict` and `load_state_dict`."
            )


def refuse_other_arguments(cls: type, root: type) -> None:
    """Raise ``TypeError`` if a method cannot be called as the library's method that it overrides.

    Args:
        cls: The class, just made.
        root: The base class of all that have hooks.
    """
    bases = [base for base in cls.__mro__[1:] if issubclass(base, root) and is_of_library(base)]
    for name, own in vars(cls).items():
        owner = next((base for base in bases if name in vars(base)), None)
        if owner is None or name.startswith("_") or not inspect.isfunction(own):
            continue
        overridden = vars(owner)[name]
        if inspect.isfunction(overridden) and not _takes(own, overridden):
            raise TypeError(
                f"`{cls.__name__}.{name}` must take the arguments of `{owner.__name__}.{name}`, with which it is "
                f"called: `def {_head(overridden)}`, got `def {_head(own)}`."
            )


def _takes(own: Callable[..., Any], overridden: Callable[..., Any]) -> bool:
    """Whether one function can be called as another, with and without the arguments that have defaults."""
    signature, parameters = inspect.signature(own), inspect.signature(overridden).parameters.values()
    named = [each for each in parameters if each.kind in _NAMED]
    for given in (named, [each for each in named if each.default is Parameter.empty]):
        by_name = {each.name: None for each in given if each.kind is Parameter.KEYWORD_ONLY}
        try:
            signature.bind(*[None] * (len(given) - len(by_name)), **by_name)
        except TypeError:
            return False
    return True


def _head(function: Callable[..., Any]) -> str:
    """Return a function's name and arguments, without their types."""
    signature = inspect.signature(function)
    bare = [each.replace(annotation=Parameter.empty) for each in signature.parameters.values()]
    return f"{function.__name__}{inspect.Signature(bare)}"
