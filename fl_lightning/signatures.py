"""Signatures in full, for help and completion: constructors show what they hand on as ``**options``."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import sys
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, TypeVar, cast

_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_Constructor = TypeVar("_Constructor", bound=Callable[..., None])


class ShowsSignature:
    """Gives every subclass the signature in which ``**options`` is replaced by the arguments of the base classes.

    ``help(cls)``, ``inspect.signature(cls)`` and completion show it. Where a constructor says by
    ``**options: Unpack[SomeTypedDict]`` which arguments it hands on, only these are shown.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__signature__ = full_signature(cls)  # type: ignore[attr-defined]


def names_unknown(constructor: _Constructor) -> _Constructor:
    """Return a base class's constructor whose error for an unknown argument names the class that the user called.

    Arguments that subclasses hand on as ``**options`` arrive here. The error also names the argument that was probably
    meant.
    """
    known = {*inspect.signature(constructor).parameters}

    @functools.wraps(constructor)
    def checked(self: object, *args: Any, **options: Any) -> None:
        unknown = [name for name in options if name not in known]
        if unknown:
            close = difflib.get_close_matches(unknown[0], full_signature(type(self)).parameters, n=1)
            meant = f" Did you mean `{close[0]}`?" if close else ""
            raise TypeError(f"{type(self).__name__} has no argument `{unknown[0]}`.{meant}")
        constructor(self, *args, **options)

    return cast(_Constructor, checked)


def full_signature(cls: type) -> Signature:
    """Return the arguments of a class's constructor and those that it hands on to constructors of base classes."""
    owners = [base for base in cls.__mro__ if "__init__" in vars(base) and base is not object]
    found: dict[str, Parameter] = {}
    handed_on: set[str] | None = None  # names; None for any
    rest: Parameter | None = None
    for place, owner in enumerate(owners):
        [_, *parameters] = inspect.signature(vars(owner)["__init__"]).parameters.values()
        rest = next((each for each in parameters if each.kind is Parameter.VAR_KEYWORD), None)
        for parameter in parameters:
            if place == 0 and parameter is not rest:
                found[parameter.name] = parameter
            elif parameter.kind in _NAMED and (handed_on is None or parameter.name in handed_on):
                found.setdefault(parameter.name, parameter.replace(kind=Parameter.KEYWORD_ONLY))
        if rest is None:
            break
        names = _names_of(rest, owner)
        handed_on = names if handed_on is None else handed_on if names is None else handed_on & names
    ordered = [*found.values(), *([] if rest is None else [rest])]
    return Signature(sorted(ordered, key=lambda parameter: parameter.kind))


def _names_of(options: Parameter, owner: type) -> set[str] | None:
    """Return the names in the TypedDict that annotates ``**options``; ``None`` if there is none."""
    text = re.fullmatch(r"Unpack\[(\w+)\]", str(options.annotation))
    kind = getattr(sys.modules.get(owner.__module__), text[1], None) if text else None
    keys = getattr(kind, "__required_keys__", None), getattr(kind, "__optional_keys__", None)
    return None if keys[0] is None else set(keys[0]) | set(keys[1] or ())
