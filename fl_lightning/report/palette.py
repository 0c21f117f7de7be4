"""Colours, dashes and marks that stay apart without colour vision and in print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

#: Of Okabe and Ito, without the yellow that is too pale on white, and two of Tol.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288", "#7F7F7F")
MARKS = "osD^vPX*<>"
Dashes = Literal["-"] | tuple[float, Sequence[float]]
_DASHES: Sequence[Dashes] = ("-", (0, (8, 1.5)), (0, (4, 1.5)), (0, (1.5, 1)))


def color(number: int) -> str:
    """Return the colour of a line or a mark by its number."""
    return COLORS[number % len(COLORS)]


def dashes(number: int) -> Dashes:
    """Return the dashes of a line: a curve below it shows through their gaps.

    Lines of one colour have different dashes.
    """
    return _DASHES[(number + number // len(COLORS)) % len(_DASHES)]


def mark(number: int) -> str:
    """Return a mark by its number."""
    return MARKS[number % len(MARKS)]
