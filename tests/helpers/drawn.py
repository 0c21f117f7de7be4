"""What a figure or a page shows, as lines of text: with it a test compares all that a reader sees at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.collections import Collection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import AxLine, Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text


def drawn(figure: Figure) -> list[str]:
    """Return the size of a figure, and of all its axes the labels, the ticks, and what is drawn."""
    lines = [f"figure of {_numbers(figure.get_size_inches())} inches"]
    for axes in figure.axes:
        titles = [axes.get_title(loc=place) for place in ("left", "center", "right")]  # type: ignore[arg-type]
        lines += [f"axes {titles}", f"  {_axis(axes.xaxis)}", f"  {_axis(axes.yaxis)}"] if axes.axison else ["nothing"]
        hidden = (axes.patch, axes.title, axes._left_title, axes._right_title)  # type: ignore[attr-defined]
        lines += [f"  {_artist(each)}" for each in axes.get_children() if axes.axison and each not in hidden]
    for legend in [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]:
        names = [text.get_text() for text in legend.get_texts()]
        lines.append(f"legend {legend._outside_loc} of {legend._ncols} columns: {names}")  # type: ignore[attr-defined]
        lines += [f"  {_artist(each)}" for each in legend.legend_handles]
    return [line for line in lines if line.strip()]


def read(path: Path) -> list[str]:
    """Return what a page of HTML shows, with a line for each row of a table."""
    page = re.sub(r"(?s)^.*<body>|<style.*?</style>|<pre>.*?</pre>|<div.*?>", "", path.read_text(encoding="utf-8"))
    page = re.sub(r'</(div|td|th|tr|p|figure|figcaption)>|;base64,[^"]*', "", page)
    # Of the classes those count that decide how a cell looks.
    page = re.sub(r' class="(?:data|row_heading|col_heading|index_name)[^"]*?((?: best| text| long)*)"', r"\1", page)
    return [line.strip() for line in re.sub(r"\s*\n\s*(?=<t[dh])", " ", page).splitlines() if line.strip()]


def assert_as_in(path: Path, lines: Iterable[str], folder: Path) -> None:
    """Compare lines with those of a file, which somebody has read; what is found is left in a folder."""
    found = "".join(f"{line.rstrip()}\n" for line in lines)
    (folder / path.name).write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8"), f"If this is right, copy {folder / path.name} to {path}."


def _axis(axis: Axis) -> str:
    shown = [label.get_text() for label in axis.get_ticklabels()]
    ends = _numbers(axis.get_view_interval())
    return f"{axis.get_label_text()!r} {ends} {shown} as {axis.get_major_formatter()(0.5)!r}"


def _artist(artist: Any) -> str:
    rest = f"{artist.get_label()!r} alpha {artist.get_alpha()} order {artist.get_zorder():g}"
    if isinstance(artist, Line2D):
        through = f"through {artist.get_xy1()}" if isinstance(artist, AxLine) else ""
        points = through or " ".join(_numbers(np.asarray(each, dtype=float)) for each in artist.get_data())
        width = f"{artist.get_linewidth():.2f} {artist._unscaled_dash_pattern}"  # type: ignore[attr-defined]
        mark = (
            f"{artist.get_marker()} {artist.get_markersize():g} {artist.get_markerfacecolor()} {artist.get_markevery()}"
        )
        return f"line {points} {to_hex(artist.get_color())} {width} mark {mark} {rest}"
    if isinstance(artist, Rectangle):
        return f"bar {_numbers(artist.get_bbox().bounds)} {to_hex(artist.get_facecolor())} {rest}"
    if isinstance(artist, Collection):
        points = " ".join(_numbers(np.ravel(each.vertices)) for each in artist.get_paths())
        return f"area {points} {[*map(to_hex, (*artist.get_facecolor(), *artist.get_edgecolor()))]} {rest}"
    if isinstance(artist, Text):
        return f"text {artist.get_text()!r} {_numbers(artist.get_position())} {artist.get_fontsize():g} {rest}"
    return ""


def _numbers(values: Iterable[float]) -> str:
    return f"[{' '.join(f'{value:.4g}' for value in values)}]"
