"""Figures and pages as lines of text, so that a test compares at once all that a reader sees."""

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
from matplotlib.ticker import MaxNLocator


def drawn(figure: Figure) -> list[str]:
    """Return the size of a figure, and of all its axes the labels, the ticks, and what is drawn."""
    lines = [f"figure of {_numbers(figure.get_size_inches())} inches"]
    for axes in figure.axes:
        if not axes.axison:
            lines.append("nothing")
            continue
        titles = [axes.get_title(loc=place) for place in ("left", "center", "right")]  # type: ignore[arg-type]
        sides = [side for side, spine in axes.spines.items() if spine.get_visible()]
        hidden = (axes._left_title, axes.title, axes._right_title)  # type: ignore[attr-defined]
        sizes = _numbers(title.get_fontsize() for title in hidden)
        lines.append(f"axes {titles} in {sizes} between {sides}, ticks below {axes.get_axisbelow()}")
        lines += [f"  {_axis(axes.xaxis)}", f"  {_axis(axes.yaxis)}"]
        lines += [f"  {_artist(each)}" for each in axes.get_children() if each not in (axes.patch, *hidden)]
    for legend in [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]:
        names = [text.get_text() for text in legend.get_texts()]
        frame = "framed" if legend.get_frame_on() else "without frame"
        [size] = {text.get_fontsize() for text in legend.get_texts()}
        place = f"{legend._loc} {legend._outside_loc} {frame}"  # type: ignore[attr-defined]
        box = f" at {_numbers(legend._bbox_to_anchor._bbox.bounds)}" if legend._bbox_to_anchor else ""  # type: ignore[attr-defined]
        columns = f"{legend._ncols} columns {legend.columnspacing:g} apart{box}"  # type: ignore[attr-defined]
        lines.append(f"legend {legend.get_title().get_text()!r} {names} {place} of {columns} in {size:g}")
        lines += [f"  {_artist(each)}" for each in legend.legend_handles]
    return [line for line in lines if line.strip()]


def read(path: Path) -> list[str]:
    """Return what a page of HTML shows, with a line for each row of a table."""
    page = re.sub(r"(?s)^.*<body>|<style.*?</style>|<pre>.*?</pre>|<div.*?>", "", path.read_text(encoding="utf-8"))
    page = re.sub(r'</(div|td|th|tr|p|figure|figcaption)>|;base64,[^"]*', "", page)
    # Of the classes those count that decide how a cell looks.
    page = re.sub(r' class="(?:data|row_heading|col_heading|index_name)[^"]*?((?: best| text| long)*)"', r"\1", page)
    return [line.strip() for line in re.sub(r"\s*\n\s*(?=<t[dh])", " ", page).splitlines() if line.strip()]


def _axis(axis: Axis) -> str:
    shown = [label.get_text() for label in axis.get_ticklabels()]
    ends = _numbers(axis.get_view_interval())
    looks = sorted({(label.get_fontsize(), label.get_rotation()) for label in axis.get_ticklabels()})
    tick = axis.majorTicks[0] if axis.majorTicks else axis.get_major_ticks(1)[0]
    grid = f" grid {to_hex(tick.gridline.get_color())}" if tick.gridline.get_visible() else ""
    marks = f"{tick.tick1line.get_markersize():g} long{grid}{_places(axis.get_major_locator())}"
    return f"{axis.get_label_text()!r} {ends} {shown} in {looks} as {axis.get_major_formatter()(0.5)!r} {marks}"


def _places(locator: Any) -> str:
    """Return how ticks are placed, unless that is matplotlib's default or their places are given."""
    if type(locator) is not MaxNLocator:
        return ""
    most, steps, least = locator._nbins, _numbers(locator._steps), locator._min_n_ticks  # type: ignore[attr-defined]
    return f" {least} to {most} at {steps} whole {locator._integer}"  # type: ignore[attr-defined]


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
        edge = f"{to_hex(artist.get_edgecolor(), True)} {artist.get_linewidth():g} {artist.get_hatch() or ''}"
        return f"bar {_numbers(artist.get_bbox().bounds)} {to_hex(artist.get_facecolor())} edge {edge} {rest}"
    if isinstance(artist, Collection):
        points = " ".join(_numbers(np.ravel(each.vertices)) for each in artist.get_paths())
        colors = [*map(to_hex, (*artist.get_facecolor(), *artist.get_edgecolor()))]
        return f"area {points} {colors} {_numbers(artist.get_linewidth())} {rest}"
    if isinstance(artist, Text):
        place = f"{_numbers(artist.get_position())} {artist.get_ha()} {artist.get_va()}"
        looks = f"{artist.get_fontsize():g} {artist.get_color()} {artist.get_weight()} turned {artist.get_rotation():g}"
        return f"text {artist.get_text()!r} {place} in {looks} {rest}"
    return ""


def _numbers(values: Iterable[float]) -> str:
    return f"[{' '.join(f'{value:.4g}' for value in values)}]"
