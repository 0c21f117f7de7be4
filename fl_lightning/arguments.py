"""Checks of user arguments, so that every error reads alike: the argument, the value, what is allowed, the way out."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from fl_lightning.representation import short


def check_choice(name: str, value: object, allowed: Sequence[str], hint: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``allowed``."""
    if not isinstance(value, str) or value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"`{name}` must be one of {choices}, got {got(value)}.{_sentence(hint)}")


def check_positive(name: str, value: float, hint: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number greater than zero."""
    if not is_number(value) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"`{name}` must be a finite number greater than 0, got {got(value)}.{_sentence(hint)}")


def check_not_negative(name: str, value: float, hint: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number of at least zero."""
    if not is_number(value) or not math.isfinite(value) or value < 0:
        raise ValueError(f"`{name}` must be a finite number of at least 0, got {got(value)}.{_sentence(hint)}")


def check_fraction(name: str, value: float, hint: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is a number in [0, 1)."""
    if not is_number(value) or not 0 <= value < 1:
        raise ValueError(f"`{name}` must be a number in [0, 1), got {got(value)}.{_sentence(hint)}")


def check_count(name: str, value: object, minimum: int = 1, hint: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is a whole number of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        raise ValueError(f"`{name}` must be a whole number of at least {minimum}, got {got(value)}.{_sentence(hint)}")


def check_bool(name: str, value: object, hint: str = "") -> None:
    """Raise ``TypeError`` unless ``value`` is True or False, of Python or numpy."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"`{name}` must be True or False, got {got(value)}.{_sentence(hint)}")


def check_text(name: str, value: object, hint: str = "") -> None:
    """Raise ``TypeError`` unless ``value`` is a text, ``ValueError`` if it is empty."""
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a text, got {got(value)}.{_sentence(hint)}")
    if not value:
        raise ValueError(f"`{name}` must not be empty.{_sentence(hint)}")


def check_texts(name: str, values: object, hint: str = "") -> None:
    """Raise ``TypeError`` unless ``values`` are a sequence of texts; a single text, a sequence of letters, is none."""
    if not is_sequence(values) or not all(isinstance(value, str) for value in values):  # type: ignore[attr-defined]
        way_out = f" Give [{values!r}]." if isinstance(values, str) else _sentence(hint)
        raise TypeError(f"`{name}` must be a sequence of texts, got {got(values)}.{way_out}")


def check_callable(name: str, value: object, hint: str = "") -> None:
    """Raise ``TypeError`` unless ``value`` can be called."""
    if not callable(value):
        raise TypeError(f"`{name}` must be a function, got {got(value)}.{_sentence(hint)}")


def check_instance(name: str, value: object, kind: type, hint: str = "") -> None:
    """Raise ``TypeError`` unless ``value`` is an object of a class."""
    if inspect.isclass(value) and issubclass(value, kind):
        raise TypeError(f"`{name}` must be a {kind.__name__}, got the class {value.__name__}. Make an object of it.")
    if not isinstance(value, kind):
        raise TypeError(f"`{name}` must be a {kind.__name__}, got {got(value)}.{_sentence(hint)}")


def is_number(value: object) -> bool:
    """Return whether a value is a real number, of Python or numpy; True and False are none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_sequence(value: object) -> bool:
    """Return whether a value is a sequence or an array; a text, a sequence of letters, is none."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def got(value: object) -> str:
    """Return a wrong value for an error: short, but a number in an array or tensor is told from a plain one."""
    return repr(value) if getattr(value, "shape", None) == () else short(value)


def to_indices(name: str, values: Any) -> np.ndarray:
    """Return sample indices, of an array, a list or a tensor, as int64.

    Raises:
        TypeError: If they are no integers; a mask of booleans is none either.
        ValueError: If they are not 1-D.
    """
    array = to_array(name, values)
    if array.ndim != 1:
        raise ValueError(f"`{name}` must be 1-D, one index after the other, got {shape_of(array, values)}.")
    if array.dtype == bool:
        raise TypeError(f"`{name}` must be integers, got a mask of booleans. Give `numpy.flatnonzero(mask)`.")
    if array.dtype.kind not in "iu":
        raise TypeError(f"`{name}` must be integers, got {array.dtype}.")
    return array.astype(np.int64)


def to_array(name: str, values: Any) -> np.ndarray:
    """Return an array, a list, a tuple or a tensor as an array; an empty one holds integers.

    Raises:
        TypeError: If numpy cannot make an array of it, as of rows of unequal lengths.
    """
    try:
        # a tensor may need a gradient or lie on a device
        array = np.asarray(values.detach().cpu() if callable(getattr(values, "detach", None)) else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"`{name}` must be an array, a list or a tensor, got {got(values)} ({error}).") from error
    return array.astype(np.int64) if array.shape == (0,) else array


def shape_of(array: np.ndarray, given: object) -> str:
    """Return an array's shape for an error, or the value that was given if it is a single one."""
    return f"shape {array.shape}" if array.ndim else got(given)


def _sentence(hint: str) -> str:
    return f" {hint}" if hint else ""
