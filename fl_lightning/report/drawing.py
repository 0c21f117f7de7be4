"""What the figures of reports have in common."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import MaxNLocator

MARKS = "osD^vPX*<>"
#: A curve below shows through the gaps.
DASHES: Sequence[Any] = ("-", (0, (8, 1.5)), (0, (4, 1.5)), (0, (1.5, 1)))
#: Characters of the longest name in a legend of two columns.
_LONGEST_OF_TWO = 24
COLORS = matplotlib.style.library["petroff10"]["axes.prop_cycle"].by_key()["color"]


def style() -> AbstractContextManager[None]:
    """Return the context in which figures for a screen are made and written."""
    return matplotlib.style.context(["petroff10", "fl_lightning.report.fl"])


def style_of_column() -> AbstractContextManager[None]:
    """Return the context in which figures that are as wide as the column of a paper are made and written."""
    return matplotlib.style.context(["petroff10", "fl_lightning.report.fl", "fl_lightning.report.column"])


def color(number: int) -> str:
    """Return the colour of a line or a mark by its number; unlike "C1" it does not depend on the style."""
    return str(COLORS[number % len(COLORS)])


def shade(number: int, total: int) -> str:
    """Return the grey of one of several things that are no methods: colours are those of methods."""
    return f"{0.7 * number / max(1, total - 1):.2f}"


def label(name: str, width: int = 30) -> str:
    """Return a name in lines, as matplotlib draws it: no formula between dollars, and in legends from "_" on."""
    text = name.replace("$", r"\$")
    # matplotlib leaves labels that begin with "_" out of legends.
    if text.startswith("_"):
        text = f" {text}"
    return textwrap.fill(text, width, max_lines=3, placeholder="…")


def whole_rounds(axes: Axes) -> None:
    """Let the x axis have ticks only at whole rounds."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.xaxis.set_major_formatter("{x:,.0f}")


def in_percent(axis: Axis) -> None:
    """Write the ticks of an axis of shares in per cent."""
    axis.set_major_formatter(lambda share, _: f"{100 * share:g} %")


def add_legend(figure: Figure, handles: Sequence[Artist | BarContainer]) -> None:
    """Put a legend below the axes, of two columns if the names are short; the figure grows: the axes lose no height."""
    if len(handles) < 2:
        return
    names = [str(handle.get_label()) for handle in handles]
    lines = 1 + max(name.count("\n") for name in names)
    longest = max(len(line) for name in names for line in name.split("\n"))
    columns = 2 if longest <= _LONGEST_OF_TWO else 1
    rows = math.ceil(len(handles) / columns)
    letters = FontProperties(size=matplotlib.rcParams["legend.fontsize"]).get_size_in_points()
    # Inches of a line with the space below it.
    line = 1.45 * letters / 72
    figure.set_figheight(figure.get_figheight() + line * lines * rows)
    figure.legend(handles=handles, ncols=columns, loc="outside lower center", columnspacing=1.0)
