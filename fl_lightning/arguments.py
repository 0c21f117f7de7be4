"""Checks of user arguments, so that every error reads alike: the argument, the value, what is allowed, the way out."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from fl_lightning.representation import short


def check_choice(name: str, value: object, allowed: Sequence[str], hint: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``allowed``."""
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"`{name}` must be one of {choices}, got {value!r}.{_sentence(hint)}")


def check_positive(name: str, value: float, hint: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number greater than zero."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"`{name}` must be a finite number greater than 0, got {value!r}.{_sentence(hint)}")


def check_not_negative(name: str, value: float, hint: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is a finite number of at least zero."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value) or value < 0:
        raise ValueError(f"`{name}` must be a finite number of at least 0, got {value!r}.{_sentence(hint)}")


def check_fraction(name: str, value: float, hint: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is a number in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value < 1:
        raise ValueError(f"`{name}` must be a number in [0, 1), got {value!r}.{_sentence(hint)}")


def check_count(name: str, value: object, minimum: int = 1, hint: str = "") -> None:
    """Raise ``ValueError`` unless ``value`` is a whole number of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        raise ValueError(f"`{name}` must be a whole number of at least {minimum}, got {value!r}.{_sentence(hint)}")


def to_array(name: str, values: Any) -> np.ndarray:
    """Return an array, a list, a tuple or a tensor as an array; an empty one holds integers.

    Raises:
        TypeError: If numpy cannot make an array of it, as of rows of unequal lengths.
    """
    try:
        # a tensor may need a gradient or lie on a device
        array = np.asarray(values.detach().cpu() if callable(getattr(values, "detach", None)) else values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"`{name}` must be an array, a list or a tensor, got {short(values)} ({error}).") from error
    return array.astype(np.int64) if array.shape == (0,) else array


def _sentence(hint: str) -> str:
    return f" {hint}" if hint else ""
