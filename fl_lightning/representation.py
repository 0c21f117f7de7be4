"""One line that shows how an object was made: its class and the constructor arguments that differ from their defaults.

A class gets it by inheriting from :class:`ShowsArguments`, or by calling :func:`represent` in its own ``__repr__``.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np

from fl_lightning.signatures import ShowsSignature

_MAX_ITEMS = 4  # of a list, a dict or a set
_MAX_TEXT = 60  # characters of a text, such as a path
_MAX_OBJECT = 160  # characters of an object within another
_MAX_DEPTH = 3  # lists within lists
_KEPT = "_arguments_given"  # the attribute with the arguments that are kept

_Parameter = inspect.Parameter
_running = threading.local()


class ShowsArguments(ShowsSignature):
    """Gives a class the ``repr`` of :func:`represent`.

    Attributes:
        shown_always: Arguments that are shown even where they have their default values, such as a seed.
        stored_as: The attribute of an argument whose own name is that of a method.
    """

    shown_always: ClassVar[tuple[str, ...]] = ()
    stored_as: ClassVar[Mapping[str, str]] = {}

    def __repr__(self) -> str:
        return represent(self, always=self.shown_always)


def represent(instance: object, *facts: str, always: Sequence[str] = (), leave_out: Sequence[str] = ()) -> str:
    """Return the class and the constructor arguments of an object that differ from their defaults, in one line.

    The value of an argument is the attribute of the same name. An argument without such an attribute is left out,
    unless :func:`keep_arguments` has kept it. Where a constructor has ``**options``, the arguments of the base class's
    constructor follow. Nothing that an attribute does can make this fail.

    Args:
        instance: The object.
        *facts: Texts that come first, such as ``"3 clients"``.
        always: Arguments that are shown even where they have their default values.
        leave_out: Arguments that are not shown.

    Returns:
        For example ``DirichletPartitioner(num_clients=100, alpha=0.3, seed=0)``.
    """
    name = type(instance).__name__
    shown = _shown_now()
    if id(instance) in shown:
        return f"{name}(...)"  # the object holds itself
    shown.add(id(instance))
    try:
        return f"{name}({', '.join([*facts, *_arguments(instance, always, leave_out)])})"
    except Exception:
        return f"{name}({', '.join([*facts, '...'])})"
    finally:
        shown.discard(id(instance))


def arguments(instance: object) -> dict[str, Any]:
    """Return the values of an object's constructor arguments by name, where an attribute has them or they are kept."""
    values = dict(_kept_arguments(instance))
    stored_as = getattr(type(instance), "stored_as", {})
    for parameter in _parameters(type(instance)):
        with suppress(Exception):  # no such attribute, or a property that is not ready yet
            values[parameter.name] = getattr(instance, stored_as.get(parameter.name, parameter.name))
    return values


def keep_arguments(instance: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Keep the arguments with which an object is made, for those that no attribute of the same name has."""
    signature = inspect.signature(type(instance).__init__)
    with suppress(TypeError):  # its constructor tells what is wrong
        _, *given_items = signature.bind_partial(instance, *args, **kwargs).arguments.items()
        given = dict(given_items)
        for parameter in signature.parameters.values():
            if parameter.kind is _Parameter.VAR_KEYWORD:
                given.update(given.pop(parameter.name, {}))
        # what is read once would be of no use later, and cannot be copied
        vars(instance)[_KEPT] = {name: value for name, value in given.items() if not isinstance(value, Iterator)}


def _kept_arguments(instance: object) -> Mapping[str, Any]:
    kept: Mapping[str, Any] = getattr(instance, "__dict__", {}).get(_KEPT, {})
    return kept


def short(value: object, depth: int = 0) -> str:
    """Return a value in a few words: arrays by their shape, functions by their name, long texts and lists cut."""
    try:
        return _short(value, depth)
    except Exception:
        return f"<{type(value).__name__}>"


def counted(number: int, noun: str) -> str:
    """Return a number of things as a text: ``"1 client"``, ``"2,000 clients"``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def who_train(number: int) -> str:
    """Return ``"1 client trains"`` or ``"2 clients train"``."""
    return f"{counted(number, 'client')} train{'s' * (number == 1)}"


def _arguments(instance: object, always: Sequence[str], leave_out: Sequence[str]) -> Iterator[str]:
    values = arguments(instance)
    for parameter in _parameters(type(instance)):
        if parameter.name in leave_out:
            continue
        if parameter.name not in values:
            continue
        value = values[parameter.name]
        if parameter.kind is _Parameter.VAR_POSITIONAL:
            if isinstance(value, Sequence) and not isinstance(value, str):
                yield from (short(item) for item in value)
        elif parameter.name in always or not _is_default(value, parameter.default):
            yield f"{parameter.name}={short(value)}"


def _parameters(cls: type) -> tuple[inspect.Parameter, ...]:
    """Return a constructor's arguments; while a constructor takes any others by name, those of its base class too."""
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        for parameter in parameters:
            if parameter.kind is not _Parameter.VAR_KEYWORD:
                found.setdefault(parameter.name, parameter)
        if all(parameter.kind is not _Parameter.VAR_KEYWORD for parameter in parameters):
            break
    return tuple(found.values())


def _is_default(value: object, default: object) -> bool:
    if value is default:
        return True
    # True is no 1, and an array is equal to a number in more than one way
    if default is _Parameter.empty or isinstance(value, bool) != isinstance(default, bool):
        return False
    try:
        equal = value == default
        return isinstance(equal, (bool, np.bool_)) and bool(equal)
    except Exception:
        return False


def _short(value: object, depth: int) -> str:
    if isinstance(value, (str, os.PathLike)):
        return repr(_cut(os.fspath(value)))
    if isinstance(value, (bytes, bytearray)):
        return f"<{type(value).__name__} of length {len(value)}>"
    if value is None or isinstance(value, (bool, int, float, complex, range, slice)):
        return str(value)
    if isinstance(value, functools.partial):
        return f"partial({short(value.func)}, ...)"
    if isinstance(value, type) or inspect.isroutine(value):
        return str(getattr(value, "__name__", type(value).__name__))
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        item = getattr(value, "item", None)
        is_number = len(shape) == 0 and callable(item)
        return short(item()) if is_number else f"<{type(value).__name__} of shape {tuple(shape)}>"  # type: ignore[misc]
    if isinstance(value, (list, tuple, Set, Mapping)):
        return _short_container(value, depth)
    return _short_object(value)


def _short_container(value: Any, depth: int) -> str:
    if depth == _MAX_DEPTH:
        return f"<{type(value).__name__} of length {len(value)}>"
    show: Callable[[Any], str] = functools.partial(short, depth=depth + 1)
    items = [show(item) for item, _ in zip(value, range(_MAX_ITEMS), strict=False)]
    if isinstance(value, Mapping):
        items = [f"{key}: {show(value[name])}" for key, name in zip(items, value, strict=False)]
    if len(value) > _MAX_ITEMS:
        items.append(f"... {len(value)} in all")
    elif isinstance(value, tuple) and len(value) == 1:
        items.append("")
    start, end = "()" if isinstance(value, tuple) else "[]" if isinstance(value, list) else "{}"
    return start + ", ".join(items).rstrip(" ") + end


def _short_object(value: object) -> str:
    """Return an object's own text if that is one short line, otherwise its class."""
    if type(value).__repr__ is object.__repr__:
        return f"<{type(value).__name__}>"  # the address would tell nobody anything
    text = repr(value)
    return f"{type(value).__name__}(...)" if "\n" in text or len(text) > _MAX_OBJECT else text


def _cut(text: str | bytes) -> str:
    text = os.fsdecode(text)
    half = _MAX_TEXT // 2
    return text if len(text) <= _MAX_TEXT else f"{text[:half]}...{text[-half:]}"


def _shown_now() -> set[int]:
    """Return which objects this thread is in the middle of showing."""
    shown: set[int] = _running.__dict__.setdefault("shown", set())
    return shown
