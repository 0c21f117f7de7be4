"""What the figures of reports have in common."""

from __future__ import annotations

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
from matplotlib.ticker import MaxNLocator

MARKS = "osD^vPX*<>"
#: A curve below shows through the gaps.
DASHES: Sequence[Any] = ("-", (0, (8, 1.5)), (0, (4, 1.5)), (0, (1.5, 1)))
COLORS = matplotlib.style.library["petroff10"]["axes.prop_cycle"].by_key()["color"]


def style() -> AbstractContextManager[None]:
    """Return the context in which figures are made and written."""
    return matplotlib.style.context(["petroff10", "fl_lightning.report.fl"])


def color(number: int) -> str:
    """Return the colour of a line or a mark by its number; unlike "C1" it does not depend on the style."""
    return str(COLORS[number % len(COLORS)])


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
    """Put a legend of two columns below the axes; the figure grows, so that the axes lose no height."""
    if len(handles) < 2:
        return
    lines = 1 + max(str(handle.get_label()).count("\n") for handle in handles)
    rows = (len(handles) + 1) // 2
    # A line of the legend is 0.19 inches high.
    figure.set_figheight(figure.get_figheight() + 0.19 * lines * rows)
    figure.legend(handles=handles, ncols=2, loc="outside lower center")
