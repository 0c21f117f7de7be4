"""Parts that the figures of reports have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEGEND_LINE = 0.19  # inches
_SIZE = (5.2, 3.5)  # inches, so that the texts can be read on a phone
_LETTER_WIDTH = 0.068  # inches of a letter of a legend, on the average
_HANDLE_WIDTH = 0.55  # inches of a legend's line, with the blanks around it
_MOST_COLUMNS = 4


def new_figure(height: float = _SIZE[1]) -> tuple[Figure, Axes]:
    """Return an empty figure that pyplot does not know, and its axes.

    Args:
        height: Its height in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_SIZE[0], height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.title.set_fontsize(11)
    return figure, axes


def whole_rounds(axes: Axes) -> None:
    """Let the x axis have ticks only at whole rounds."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.xaxis.set_major_formatter("{x:,.0f}")


def legend(figure: Figure, names: Sequence[str]) -> None:
    """Put a legend of these names below the axes; the figure grows, so that the axes lose neither width nor height."""
    if len(names) < 2:
        return
    columns = legend_columns(names, figure.get_figwidth())
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * -(-len(names) // columns))
    figure.legend(frameon=False, fontsize=9, ncols=columns, loc="outside lower center", columnspacing=1.2)


def legend_columns(names: Sequence[str], width: float) -> int:
    """Return how many columns of a legend fit into a width in inches; all columns have about the same length."""
    column = _HANDLE_WIDTH + _LETTER_WIDTH * max(map(len, names))
    most = max(1, min(len(names), _MOST_COLUMNS, int(width / column)))
    return -(-len(names) // -(-len(names) // most))
