"""Checks of user arguments, so that every error reads alike: the argument, the value, what is allowed, the way out."""

from __future__ import annotations

import inspect
import math
import numbers
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fl_lightning.checks import is_number as is_number
from fl_lightning.checks import is_sequence as is_sequence
from fl_lightning.checks import plain as plain
from fl_lightning.checks import short
from fl_lightning.checks import to_array as to_array
from fl_lightning.checks import to_indices as to_indices

#: Python, numpy and torch count in integers of 64 bits.
LARGEST_SIZE = 2**63 - 1


def check_choice(name: str, value: object, allowed: Sequence[str], hint: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``allowed``."""
    if not isinstance(value, str) or value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"`{name}` must be one of {choices}, got {got(value)}.{_sentence(hint)}")


def check_positive(name: str, value: float, hint: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number greater than zero."""
    if not is_finite(value) or value <= 0:
        raise ValueError(f"`{name}` must be a finite number greater than 0, got {got_number(value)}.{_sentence(hint)}")


def check_not_negative(name: str, value: float, hint: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number of at least zero."""
    if not is_finite(value) or value < 0:
        raise ValueError(f"`{name}` must be a finite number of at least 0, got {got_number(value)}.{_sentence(hint)}")


def check_finite(name: str, value: float, hint: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number."""
    if not is_finite(value):
        raise ValueError(f"`{name}` must be a finite number, got {got_number(value)}.{_sentence(hint)}")


def check_fraction(name: str, value: float, hint: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is a number in [0, 1)."""
    check_interval(name, value, hint, within="[0, 1)")


def check_interval(name: str, value: float, hint: str = "", *, within: str) -> None:
    """Raise ``ValueError`` unless ``value`` is a number in an interval, as ``"(0, 1]"``."""
    low, high = (float(end) for end in within[1:-1].split(","))
    if is_number(value):
        above = value > low or (within[0] == "[" and value == low)
        below = value < high or (within[-1] == "]" and value == high)
        if above and below:
            return
    raise ValueError(f"`{name}` must be a number in {within}, got {got_number(value)}.{_sentence(hint)}")


def check_count(name: str, value: object, minimum: int = 1, hint: str = "", maximum: int | None = None) -> None:
    """Raise ``ValueError`` unless ``value`` is a whole number of at least ``minimum``, and at most ``maximum``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        raise ValueError(
            f"`{name}` must be a whole number of at least {minimum}, got {got_number(value)}.{_sentence(hint)}"
        )
    if maximum is not None and int(value) > maximum:
        raise ValueError(f"`{name}` must be a whole number of at most {maximum}, got {got(value)}.")


def check_size(name: str, value: object, minimum: int = 1, hint: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is a whole number that a tensor or an index can have as its size."""
    check_count(name, value, minimum, hint, LARGEST_SIZE)


def check_sizes(name: str, values: object, minimum: int = 1, hint: str = "") -> None:
    """Raise ``TypeError`` unless ``values`` are a sequence, ``ValueError`` unless each is a size."""
    if not is_sequence(values):
        raise TypeError(f"`{name}` must be a sequence of whole numbers, got {got(values)}.{_sentence(hint)}")
    for value in values:  # type: ignore[attr-defined]
        check_size(name, value, minimum, hint)


def check_bool(name: str, value: object, hint: str = "") -> None:
    """Raise ``TypeError`` unless ``value`` is True or False, of Python or numpy."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True or False, got {got_number(value)}.{_sentence(hint)}")


def check_text(name: str, value: object, hint: str = "") -> None:
    """Raise ``TypeError`` unless ``value`` is a text, ``ValueError`` if it is empty."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a string, got {got(value)}.{_sentence(hint)}")
    if not value:
        raise ValueError(f"`{name}` must not be empty.{_sentence(hint)}")


def check_texts(name: str, values: object, hint: str = "") -> None:
    """Raise ``TypeError`` unless ``values`` are a sequence of texts; a single text is not one."""
    if not is_sequence(values) or not all(isinstance(value, str) for value in values):  # type: ignore[attr-defined]
        way_out = f" Give [{values!r}]." if isinstance(values, str) else _sentence(hint)
        raise TypeError(f"`{name}` must be a sequence of texts, got {got(values)}.{way_out}")


def check_names(name: str, values: object, hint: str = "") -> None:
    """Raise ``TypeError`` unless ``values`` are a sequence of texts, ``ValueError`` if it, or a text, is empty."""
    check_texts(name, values, hint)
    if not len(values) or not all(values):  # type: ignore[arg-type]
        raise ValueError(f"`{name}` must be names, and none empty, got {got(values)}.{_sentence(hint)}")


def check_path(name: str, value: object, hint: str = "") -> None:
    """Raise ``TypeError`` unless ``value`` is a path or a text, ``ValueError`` if that is empty."""
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"`{name}` must be a path, as text or pathlib.Path, got {got(value)}.{_sentence(hint)}")
    if value == "":
        raise ValueError(f"`{name}` must not be an empty path. For the present folder give '.'.")


def as_folder(name: str, value: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    """Return a folder's path, or ``None``.

    Raises:
        ValueError: If there is a file of that name.
    """
    if isinstance(value, (str, os.PathLike)) and os.path.isfile(value):
        raise ValueError(f"`{name}` must be a folder, got the file {value}. Give the path of a folder, new or not.")
    return value


def check_callable(name: str, value: object, hint: str = "") -> None:
    """Raise ``TypeError`` unless ``value`` can be called."""
    if not callable(value):
        raise TypeError(f"`{name}` must be a function, got {got(value)}.{_sentence(hint)}")


def check_function_of(name: str, value: object, arguments: Sequence[str], hint: str = "") -> None:
    """Raise ``TypeError`` unless ``value`` can be called with so many arguments by position."""
    check_callable(name, value, hint)
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a built-in function does not tell
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(
            f"`{name}` must be a function of ({', '.join(arguments)}), got {got(value)}{signature} ({error}). Bind "
            "other arguments with `functools.partial`."
        ) from error


def check_instance(name: str, value: object, kind: type, hint: str = "") -> None:
    """Raise ``TypeError`` unless ``value`` is an object of a class."""
    wanted = f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
    if inspect.isclass(value) and issubclass(value, kind):
        raise TypeError(f"`{name}` must be {wanted}, got the class {value.__name__}. Call it: {value.__name__}(...).")
    if not isinstance(value, kind):
        raise TypeError(f"`{name}` must be {wanted}, got {got(value)}.{_sentence(hint)}")


def value_of(name: str, function: Callable[..., Any], argument: Any, hint: str = "") -> Any:
    """Return what a user's function gives for an argument.

    Raises:
        TypeError: If it fails.
    """
    try:
        return function(argument)
    except Exception as error:
        raise TypeError(
            f"`{name}` is a function that fails for {argument!r}: {type(error).__name__}: {error}{_sentence(hint)}"
        ) from error


def is_finite(value: object) -> bool:
    """Return whether a value is a real number, and no larger than a float can be."""
    try:
        return is_number(value) and math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:
        return False


def got(value: object) -> str:
    """Return a wrong value for an error: short, but a number in an array or tensor is told from a plain one."""
    return repr(value) if getattr(value, "shape", None) == () else short(value)


def got_number(value: object) -> str:
    """Return a wrong value for an error about a number; where it is in an array or tensor, with the way out."""
    packed = getattr(value, "shape", None) == () and not isinstance(value, np.generic)
    return f"{got(value)}. Give `.item()`" if packed else got(value)


def shape_of(array: np.ndarray, given: object) -> str:
    """Return an array's shape for an error, or the value that was given if it is a single one."""
    return f"shape {array.shape}" if array.ndim else got(given)


def _sentence(hint: str) -> str:
    return f" {hint}" if hint else ""
