"""Weights of results that come late."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fl_lightning.arguments import check_choice, check_interval, check_not_negative, check_positive, plain, value_of
from fl_lightning.representation import short

StalenessFunction = Callable[[int], float]
Staleness = Literal["constant", "polynomial", "hinge", "exponential"] | StalenessFunction

_HINT = "It is called with the staleness of each result, from 0, and must give a number for all of them."


@dataclass(frozen=True)
class PolynomialDecay:
    """``s(d) = (1 + d)^-a``; :func:`polynomial` makes one."""

    a: float

    def __call__(self, staleness: int) -> float:
        """Return s(d)."""
        return float((1 + staleness) ** -self.a)


@dataclass(frozen=True)
class HingeDecay:
    """``s(d) = 1`` for d <= b, then ``1 / (a (d - b) + 1)``; :func:`hinge` makes one."""

    a: float
    b: int

    def __call__(self, staleness: int) -> float:
        """Return s(d)."""
        return 1.0 if staleness <= self.b else 1.0 / (self.a * (staleness - self.b) + 1.0)


@dataclass(frozen=True)
class ExponentialDecay:
    """``s(d) = exp(-a d)``; :func:`exponential` makes one."""

    a: float

    def __call__(self, staleness: int) -> float:
        """Return s(d)."""
        return math.exp(-self.a * staleness)


def constant(staleness: int) -> float:
    """Return 1."""
    return 1.0


def polynomial(a: float = 0.5) -> StalenessFunction:
    """Return ``s(d) = (1 + d)^-a`` (Xie et al. 2019; eq. (25)); with a = 0.5 it is FedBuff's 1/sqrt(1 + d).

    Equations are numbered as in ``docs/references.md``.

    Args:
        a: Exponent, in [0, 1]; 0 ignores staleness.

    Raises:
        ValueError: If ``a`` is outside [0, 1].
    """
    hint = "It is the exponent of polynomial staleness: 0.5 is usual, 0 weighs all results alike."
    check_interval("a", a, hint, within="[0, 1]")
    return PolynomialDecay(plain(a))


def hinge(a: float = 10.0, b: int = 4) -> StalenessFunction:
    """Return ``s(d) = 1`` for d <= b, then ``1 / (a (d - b) + 1)`` (Xie et al. 2019; eq. (25)).

    Equations are numbered as in ``docs/references.md``.

    Args:
        a: Greater than 0.
        b: Staleness up to which results count in full, at least 0.

    Raises:
        ValueError: If an argument is out of its range.
    """
    check_positive("a", a)
    check_not_negative("b", b, "Up to it results count in full.")
    return HingeDecay(plain(a), plain(b))


def exponential(a: float = 0.5) -> StalenessFunction:
    """Return ``s(d) = exp(-a d)``.

    Args:
        a: Greater than 0.

    Raises:
        ValueError: If ``a`` is not greater than 0.
    """
    check_positive("a", a)
    return ExponentialDecay(plain(a))


@dataclass(frozen=True)
class CheckedWeights:
    """A function of a user's own, each of whose values is checked."""

    function: StalenessFunction

    def __call__(self, staleness: int) -> float:
        """Return s(d).

        Raises:
            TypeError: If the function fails.
            ValueError: If it is no finite number of at least 0.
        """
        weight = plain(value_of("staleness", self.function, staleness, _HINT))
        hint = f"It is the weight that {short(self.function)} gives a result of staleness {staleness}."
        check_not_negative(f"staleness({staleness})", weight, hint)
        return float(weight)


def staleness_function(staleness: Staleness) -> StalenessFunction:
    """Return the function of a name, with its usual constants; the values of a user's own are checked.

    Raises:
        TypeError: If the function fails for a staleness of 0.
        ValueError: If the name is unknown, or the function gives a fresh result no weight.
    """
    if callable(staleness):
        fresh = value_of("staleness", staleness, 0, _HINT)
        check_positive("staleness(0)", fresh, "It is the weight of a fresh result.")
        of_library = isinstance(staleness, (PolynomialDecay, HingeDecay, ExponentialDecay)) or staleness is constant
        return staleness if of_library else CheckedWeights(staleness)
    check_choice(
        "staleness",
        staleness,
        ("constant", "polynomial", "hinge", "exponential"),
        "For other constants give a function, such as polynomial(a=0.3) of fl_lightning.parts.asynchronous.",
    )
    named = {"constant": constant, "polynomial": polynomial(), "hinge": hinge(), "exponential": exponential()}
    return named[staleness]
