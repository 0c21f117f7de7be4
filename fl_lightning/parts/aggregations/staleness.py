"""Weights of results that come late."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from fl_lightning.settings import NotNegative, Positive, check, check_fields

Staleness = Literal["constant", "polynomial", "hinge", "exponential"] | Callable[[float], float]


class _Checked:
    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class polynomial(_Checked):
    """``s(d) = (1 + d)^-a`` (Xie et al. 2019; eq. (25)); with a = 0.5 it is FedBuff's 1/sqrt(1 + d).

    Equations are numbered as in ``docs/references.md``.

    Args:
        a: Exponent, in [0, 1]; 0 ignores staleness.

    Raises:
        ValueError: If ``a`` is outside [0, 1].
    """

    a: Annotated[float, "[0, 1]"] = 0.5

    def __call__(self, staleness: float) -> float:
        """Return s(d)."""
        return float((1 + staleness) ** -self.a)


@dataclass(frozen=True)
class hinge(_Checked):
    """``s(d) = 1`` for d <= b, then ``1 / (a (d - b) + 1)`` (Xie et al. 2019; eq. (25)).

    Equations are numbered as in ``docs/references.md``.

    Args:
        a: Greater than 0.
        b: Staleness up to which results count in full, at least 0.

    Raises:
        ValueError: If an argument is out of its range.
    """

    a: Positive = 10.0
    b: NotNegative = 4

    def __call__(self, staleness: float) -> float:
        """Return s(d)."""
        return 1.0 if staleness <= self.b else 1.0 / (self.a * (staleness - self.b) + 1.0)


@dataclass(frozen=True)
class exponential(_Checked):
    """``s(d) = exp(-a d)``.

    Args:
        a: Greater than 0.

    Raises:
        ValueError: If ``a`` is not greater than 0.
    """

    a: Positive = 0.5

    def __call__(self, staleness: float) -> float:
        """Return s(d)."""
        return math.exp(-self.a * staleness)


def constant(staleness: float) -> float:
    """Return 1."""
    return 1.0


_NAMED: dict[str, Callable[[float], float]] = {
    "constant": constant,
    "polynomial": polynomial(),
    "hinge": hinge(),
    "exponential": exponential(),
}


def staleness_weight(function: Staleness, staleness: float) -> float:
    """Return the weight that a name, with its usual constants, or a function gives to a staleness.

    Raises:
        ValueError: If it is no finite number of at least 0; for a fresh result, greater than 0.
    """
    if isinstance(function, str):
        function = _NAMED[function]
    weight = function(staleness)
    check(f"`staleness({staleness:g})`", weight, NotNegative if staleness else Positive)
    return float(weight)
