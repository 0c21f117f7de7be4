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


def drawn(figure: Figure) -> list[str]:
    """Return the size of a figure, and of all its axes the labels, the ticks, and what is drawn."""
    lines = [f"figure of {_numbers(figure.get_size_inches())} inches"]
    for axes in figure.axes:
        if not axes.axison:
            lines.append("nothing")
            continue
        titles = [axes.get_title(loc=place) for place in ("left", "center", "right")]  # type: ignore[arg-type]
        sides = [side for side, spine in axes.spines.items() if spine.get_visible()]
        lines.append(f"axes {titles} in {axes.title.get_fontsize():g} between {sides}")
        lines += [f"  {_axis(axes.xaxis)}", f"  {_axis(axes.yaxis)}"]
        hidden = (axes.patch, axes.title, axes._left_title, axes._right_title)  # type: ignore[attr-defined]
        lines += [f"  {_artist(each)}" for each in axes.get_children() if each not in hidden]
    for legend in [*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))]:
        names = [text.get_text() for text in legend.get_texts()]
        frame = "framed" if legend.get_frame_on() else "without frame"
        [size] = {text.get_fontsize() for text in legend.get_texts()}
        place = f"{legend._loc} {legend._outside_loc} {frame}"  # type: ignore[attr-defined]
        columns = f"{legend._ncols} columns"  # type: ignore[attr-defined]
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
    return f"{axis.get_label_text()!r} {ends} {shown} in {looks} as {axis.get_major_formatter()(0.5)!r}"


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
        return f"area {points} {[*map(to_hex, (*artist.get_facecolor(), *artist.get_edgecolor()))]} {rest}"
    if isinstance(artist, Text):
        place = f"{_numbers(artist.get_position())} {artist.get_ha()} {artist.get_va()}"
        return f"text {artist.get_text()!r} {place} in {artist.get_fontsize():g} {rest}"
    return ""


def _numbers(values: Iterable[float]) -> str:
    return f"[{' '.join(f'{value:.4g}' for value in values)}]"
