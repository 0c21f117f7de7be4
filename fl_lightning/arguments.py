"""Checks of user arguments, so that every error reads alike: the argument, the value, what is allowed, the way out."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence


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


def _sentence(hint: str) -> str:
    return f" {hint}" if hint else ""
