"""Settings: each has its limits in its type, and one function checks all of them.

>>> @dataclass
... class Proximal:
...     mu: NotNegative = 0.01
...
...     def __post_init__(self) -> None:
...         check_fields(self)
>>> Proximal(mu=-1.0)
Traceback (most recent call last):
ValueError: `mu` of Proximal must be a number in [0, inf), got -1.0.
"""

import inspect
import numbers
import os
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import cache
from inspect import Parameter
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from fl_lightning.words import short_repr

Positive = Annotated[float, "(0, inf)"]
NotNegative = Annotated[float, "[0, inf)"]
Finite = Annotated[float, "(-inf, inf)"]
Fraction = Annotated[float, "[0, 1)"]
Share = Annotated[float, "(0, 1]"]
Probability = Annotated[float, "(0, 1)"]
Count = Annotated[int, "[1, inf)"]
Natural = Annotated[int, "[0, inf)"]
#: The seeds that Lightning's ``seed_everything`` takes.
Seed = Annotated[int, "[0, 4294967296)"]
PathLike = str | os.PathLike[str]
#: A setting that may be a function of the round.
Scheduled = Positive | Callable[[int], float]
ScheduledFraction = Fraction | Callable[[int], float]
ScheduledShare = Share | Callable[[int], float]
ScheduledWeight = NotNegative | Callable[[int], float]

_Value = TypeVar("_Value")


class _Setting(NamedTuple):
    """The type of a setting, with its limits, and its default."""

    hint: Any
    default: Any


def check_fields(owner: object) -> None:
    """Check the attributes of an object against the types of its class's fields, unless they have their defaults.

    They are kept as :func:`check` returns them.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a value is out of its range.
    """
    _check_settings(owner, vars(owner), _fields(type(owner)))  # type: ignore[arg-type]


def check_arguments(owner: object, values: MutableMapping[str, Any] | None = None) -> None:
    """Check an object's attributes against the types of the arguments of its class's and its bases' constructors.

    They are kept as :func:`check` returns them.

    Args:
        owner: The object.
        values: Values by name to check instead of its attributes.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a value is out of its range.
    """
    if values is None:
        values = vars(owner)
    _check_settings(owner, values, _arguments(type(owner)))  # type: ignore[arg-type]


def _check_settings(owner: object, values: MutableMapping[str, Any], settings: Mapping[str, _Setting]) -> None:
    for name, value in values.items():
        if name not in settings:
            continue
        setting = settings[name]
        # A default may be outside of the limits, such as None for "as many as there are".
        if value is not setting.default:
            values[name] = check(f"`{name}` of {type(owner).__name__}", value, setting.hint)


@cache
def _fields(cls: type) -> dict[str, _Setting]:
    """Return the public fields of a class."""
    hints = get_type_hints(cls, include_extras=True)
    return {
        name: _Setting(hint, getattr(cls, name, Parameter.empty))
        for name, hint in hints.items()
        if not name.startswith("_")
    }


@cache
def _arguments(cls: type) -> dict[str, _Setting]:
    """Return the arguments of the constructors of a class and of its bases."""
    found = {}
    for base in reversed(cls.__mro__):
        if "__init__" not in vars(base) or base is object:
            continue
        constructor = vars(base)["__init__"]
        hints = get_type_hints(constructor, include_extras=True)
        for name, parameter in inspect.signature(constructor).parameters.items():
            if name in hints and parameter.kind is not Parameter.VAR_KEYWORD:
                found[name] = _Setting(hints[name], parameter.default)
    return found


def checked_in_round(owner: object, name: str, round_index: int, found: object) -> float:
    """Return what a setting that is a function of the round has returned.

    Args:
        owner: What has the setting.
        name: The setting.
        round_index: The round, from 0.
        found: What the function returned for it.

    Raises:
        ValueError: If it is out of the setting's range.
    """
    # The type of the setting is a union of a number with limits and of a function.
    kinds = get_args(_fields(type(owner))[name].hint)  # type: ignore[arg-type]
    number = next(kind for kind in kinds if get_origin(kind) is Annotated)
    return float(check(f"`{name}({round_index})` of {type(owner).__name__}", found, number))


def check(name: str, value: Any, hint: Any) -> Any:
    """Return a value as Python's own numbers and lists, if it is what a type, with its limits, says.

    Raises:
        TypeError: If it has another type.
        ValueError: If it is out of the range, none of the choices, or an empty string.
    """
    value = to_number(value)
    kind = get_origin(hint)
    args = get_args(hint)
    if kind is Annotated:
        number_type, interval = args
        if not _is_number_in(value, interval, whole=number_type is int):
            raise ValueError(_message(name, _in_words(hint), value))
        return value
    if kind is Literal:
        _check_choice(name, value, hint)
        return value
    if kind in (Union, UnionType):
        return _check_any(name, value, args)
    if hint is Callable or kind is Callable:
        if not callable(value):
            raise TypeError(_message(name, _in_words(hint), value))
        return value
    if kind in (list, Sequence):
        if not is_sequence(value):
            raise TypeError(_message(name, _in_words(hint), value))
        return [check(name, item, args[0]) for item in value]
    if hint is bool:
        if not isinstance(value, bool):
            raise TypeError(_message(name, _in_words(hint), value))
        return value
    # A plain `float` or `int` may be a number of another type; its limits, if it has any, are checked above.
    if hint not in (Any, float, int):
        _check_type(name, value, kind or hint)
    return value


def _is_number_in(value: Any, interval: str, *, whole: bool) -> bool:
    """Return whether a value is a number in an interval such as ``"[0, 1)"``."""
    return is_number(value) and _is_inside(value, interval) and (not whole or isinstance(value, numbers.Integral))


def _message(name: str, allowed: str, value: Any) -> str:
    """Return the text of an error about a value."""
    return f"{name} must be {allowed}, got {short_repr(value)}."


def _in_words(hint: Any) -> str:
    """Return what a value of a type may be, such as ``"a whole number in [1, inf)"``."""
    kind = get_origin(hint)
    args = get_args(hint)
    if kind is Annotated:
        number = "a whole number" if args[0] is int else "a number"
        return f"{number} in {args[1]}"
    if kind is Literal:
        choices = ", ".join(map(repr, args))
        return f"one of {choices}" if len(args) > 1 else choices
    if hint is Callable or kind is Callable:
        return "a function"
    if kind in (list, Sequence):
        return "a list"
    if hint is bool:
        return "True or False"
    return f"of the type {(kind or hint).__name__}"


def _is_inside(value: float, interval: str) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    if value == low:
        return interval.startswith("[")
    if value == high:
        return interval.endswith("]")
    return low < value < high


def _check_choice(name: str, value: Any, hint: Any) -> None:
    """Raise ``ValueError`` if a value is none of the choices; True and 1 are different values."""
    choices = get_args(hint)
    is_of_type = isinstance(value, type(choices[0])) and not isinstance(value, bool)
    if not is_of_type or value not in choices:
        raise ValueError(_message(name, _in_words(hint), value))


def _check_any(name: str, value: Any, hints: Sequence[Any]) -> Any:
    """Return a value that has one of several types; the error names all of them, or what is wrong in a list or text."""
    if value is None and type(None) in hints:
        return None
    kinds = [hint for hint in hints if hint is not type(None)]
    errors = []
    for hint in kinds:
        try:
            return check(name, value, hint)
        except (TypeError, ValueError) as error:
            errors.append(error)
            is_such_a_list = get_origin(hint) in (list, Sequence) and is_sequence(value)
            if is_such_a_list or (hint is str and isinstance(value, str)):
                raise
    if len(kinds) > 1 and not isinstance(value, type):
        allowed = " or ".join(map(_in_words, kinds)).replace(" or of the type ", " or ")
        raise type(errors[0])(_message(name, allowed, value))
    raise errors[0]


def _check_type(name: str, value: Any, cls: Any) -> None:
    """Raise ``TypeError`` if a value is no instance of a class, ``ValueError`` if it is an empty string."""
    if not isinstance(cls, type):
        return
    if not isinstance(value, cls):
        message = _message(name, _in_words(cls), value)
        if isinstance(value, type) and issubclass(value, cls):
            message += f" Call it: {value.__name__}(...)."
        raise TypeError(message)
    if cls is str and not value:
        raise ValueError(f"{name} must not be empty.")


def is_number(value: object) -> bool:
    """Return whether a value is a real number, of Python or numpy; booleans do not count."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_sequence(value: object) -> bool:
    """Return whether a value is a sequence or an array; a string does not count."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def to_number(value: _Value) -> _Value:
    """Return a number of numpy as Python's that is written alike, any other value as it is.

    ``np.float32(0.29)`` becomes 0.29, not 0.28999999165534973. Checkpoints hold plain numbers alone, and what is
    computed with a number of numpy has its precision.
    """
    if isinstance(value, np.floating):
        return float(str(value))  # type: ignore[return-value]
    if isinstance(value, np.generic):
        return value.item()  # type: ignore[no-any-return]
    return value


def check_lightning(role: str, thing: object) -> None:
    """Raise ``TypeError`` for an object of ``pytorch_lightning``, the same code in other classes.

    Neither package takes the other's objects for its own: a hook is not called, or Lightning fails with ``Expected a
    parent``.

    Args:
        role: What the object is, as the beginning of a sentence.
        thing: The object.
    """
    if any(base.__module__.split(".")[0] == "pytorch_lightning" for base in type(thing).__mro__):
        raise TypeError(
            f"{role} is a {type(thing).__name__} of `pytorch_lightning`. fl-lightning uses the package `lightning`, "
            "whose classes are different ones. Write `import lightning.pytorch as pl` instead of `import "
            "pytorch_lightning as pl`, in every file."
        )


def check_objects(callbacks: list[Any]) -> None:
    """Raise ``TypeError`` for a callback that is a class, and take it out of the trainer's list.

    Otherwise Lightning would call its ``on_exception`` without an object, and show that error instead.

    Args:
        callbacks: The trainer's callbacks.
    """
    for callback in callbacks:
        if isinstance(callback, type):
            callbacks.remove(callback)
            name = callback.__name__
            raise TypeError(f"`callbacks` of the Trainer must be objects, got the class {name}. Call it: {name}(...).")
