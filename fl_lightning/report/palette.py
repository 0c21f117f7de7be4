"""Colours, dashes and marks that stay apart without colour vision and in print, and texts that matplotlib draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fl_lightning.report.short_texts import shortened

#: Of Okabe and Ito, without the yellow that is too pale on white, and two of Tol.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288", "#7F7F7F")
#: Of Tol, for areas side by side.
AREAS = (
    "#332288",
    "#88CCEE",
    "#44AA99",
    "#117733",
    "#999933",
    "#DDCC77",
    "#CC6677",
    "#882255",
    "#AA4499",
    "#BBBBBB",
)
MARKS = "osD^vPX*<>"
Dashes = Literal["-"] | tuple[float, Sequence[float]]
_DASHES: Sequence[Dashes] = ("-", (0, (8, 1.5)), (0, (4, 1.5)), (0, (1.5, 1)))
_LONGEST = 28  # characters of a label


def color(number: int) -> str:
    """Return the colour of a line or a mark by its number."""
    return COLORS[number % len(COLORS)]


def area_colors(count: int) -> list[str]:
    """Return colours of areas that lie side by side; many of them go from dark to bright."""
    if count <= len(AREAS):
        return list(AREAS[:count])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](place / (count - 1))) for place in range(count)]


def dashes(number: int) -> Dashes:
    """Return the dashes of a line: a curve below it shows through their gaps.

    Lines of one colour have different dashes.
    """
    return _DASHES[(number + number // len(COLORS)) % len(_DASHES)]


def mark(number: int) -> str:
    """Return a mark by its number."""
    return MARKS[number % len(MARKS)]


def label(text: str, longest: int = _LONGEST) -> str:
    """Return a text as matplotlib draws it: no formula between dollars, no line breaks, and not too long.

    Matplotlib leaves a name that begins with an underscore out of legends, so a blank precedes it.
    """
    text = shortened(" ".join(text.split()), longest)
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")
