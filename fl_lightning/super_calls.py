"""Finds methods that override a base class's and forget to call ``super()``, where the base class relies on it."""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

_Overridden = TypeVar("_Overridden", bound=Callable[..., Any])
_Owner = TypeVar("_Owner", bound=type)


class _Expected(threading.local):
    """The calls of base classes' methods that are still to come: objects' ids and names of methods."""

    def __init__(self) -> None:
        self.calls: set[tuple[int, str]] = set()


_expected = _Expected()


def relied_on(purpose: str, only_if: Callable[[Any], bool] | None = None) -> Callable[[_Overridden], _Overridden]:
    """Mark a method that a user's class may extend, but not replace; see :func:`keep_super_calls`.

    Args:
        purpose: What the method does, after "which", for the error.
        only_if: Tells of an object whether the method does anything for it; always if ``None``.
    """

    def mark(method: _Overridden) -> _Overridden:
        return cast(_Overridden, _noted(method, method.__name__, purpose, only_if))

    return mark


def rely_on(purposes: Mapping[str, str]) -> Callable[[_Owner], _Owner]:
    """Mark methods of a class as :func:`relied_on` does: their purposes by name."""

    def mark(cls: _Owner) -> _Owner:
        for name, purpose in purposes.items():
            method = vars(cls).get(name)
            if inspect.isfunction(method) and not hasattr(method, "purpose"):
                setattr(cls, name, _noted(method, name, purpose, None))
        return cls

    return mark


def keep_super_calls(cls: type) -> None:
    """Let overriding methods of a class raise ``TypeError`` where they do not call the method that they override.

    Classes of the library replace such methods on purpose, or extend them. Their own methods are relied on as well.

    Args:
        cls: The class, just made.
    """
    for name, method in list(vars(cls).items()):
        if not inspect.isfunction(method):
            continue
        base = next((vars(base)[name] for base in cls.__mro__[1:] if name in vars(base)), None)
        purpose, only_if = getattr(base, "purpose", None), getattr(base, "only_if", None)
        if purpose is None or hasattr(method, "purpose"):
            continue
        setattr(cls, name, (_noted if is_of_library(cls) else _checked)(method, name, purpose, only_if))


def is_of_library(cls: type) -> bool:
    """Return whether a class comes with the library."""
    return cls.__module__.partition(".")[0] == "fl_lightning"


def user_classes(cls: type) -> tuple[list[type], type]:
    """Return the classes of a user's own from which a class is made, itself the first, and that of the library below.

    Args:
        cls: A class of the library, for which there are none, or one that is derived from one.
    """
    own = list(itertools.takewhile(lambda base: not is_of_library(base), cls.__mro__))
    return own, cls.__mro__[len(own)]


def _noted(method: Any, name: str, purpose: str, only_if: Callable[[Any], bool] | None) -> Any:
    """Return the method of a base class that notes its calls."""

    @functools.wraps(method)
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        _expected.calls.discard((id(self), name))
        return method(self, *args, **kwargs)

    return _marked(noted, purpose, only_if)


def _checked(method: Any, name: str, purpose: str, only_if: Callable[[Any], bool] | None) -> Any:
    """Return the method of a user's class that raises an error if it has not called its base class's."""

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = id(self), name
        _expected.calls.add(call)
        try:
            returned = method(self, *args, **kwargs)
            if call in _expected.calls and (only_if is None or only_if(self)):
                raise TypeError(
                    f"`{type(self).__name__}.{name}` does not call `super().{name}(...)`, which {purpose}. Call it."
                )
            return returned
        finally:
            _expected.calls.discard(call)

    return _marked(checked, purpose, only_if)


def _marked(function: Any, purpose: str, only_if: Callable[[Any], bool] | None) -> Any:
    function.purpose, function.only_if = purpose, only_if
    return function
