"""What a figure shows, as lines of text: with it a test compares all that a reader sees at once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import Collection, LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import AxLine, Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text


def drawn(figure: Figure) -> list[str]:
    """Return the size of a figure, and of all its axes the labels, the ticks, and what is drawn."""
    width, height = figure.get_size_inches()
    lines = [f"figure {width:.2f} x {height:.2f} inches"]
    for axes in figure.axes:
        if not axes.axison:
            lines.append("nothing")
            continue
        lines.append(f"axes {axes.get_title()!r} {axes.get_title(loc='left')!r} {axes.get_title(loc='right')!r}")
        lines += [f"  {_axis(axes.xaxis)}", f"  {_axis(axes.yaxis)}"]
        lines += [f"  {_artist(artist)}" for artist in axes.get_children() if _is_shown(artist, axes)]
        legend = axes.get_legend()
        if legend is not None:
            lines.append(f"  legend {[text.get_text() for text in legend.get_texts()]}, {legend._ncols} columns")
    for legend in figure.legends:
        shown = [f"{text.get_text()!r} {_artist(each)}" for text, each in _entries(legend)]
        lines.append(f"legend {legend._outside_loc} of {legend._ncols} columns:")
        lines += [f"  {each}" for each in shown]
    return lines


def assert_as_in(path: Path, lines: Iterable[str], folder: Path) -> None:
    """Compare lines with those of a file, which somebody has read; what is found is left in a folder."""
    found = "".join(f"{line.rstrip()}\n" for line in lines)
    (folder / path.name).write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8"), f"If this is right, copy {folder / path.name} to {path}."


def read(path: Path) -> list[str]:
    """Return what a page of HTML shows, with a line for each row of a table."""
    page = path.read_text(encoding="utf-8")
    page = re.sub(r"(?s)^.*<body>|<style.*?</style>|<pre>.*?</pre>|<div.*?>", "", page)
    page = re.sub("</(div|td|th|tr|p|figure|figcaption)>", "", page)
    page = re.sub(r'base64,[^"]*', "base64", page)
    # Of the classes those count that decide how a cell looks.
    page = re.sub(r' class="(?:data|row_heading|col_heading|index_name)[^"]*?((?: best| text| long)*)"', r"\1", page)
    page = re.sub(r"\s*\n\s*(?=<t[dh])", " ", page)
    return [line.strip() for line in page.splitlines() if line.strip()]


def _entries(legend: Any) -> Iterable[tuple[Text, Artist]]:
    return zip(legend.get_texts(), legend.legend_handles, strict=True)


def _axis(axis: Axis) -> str:
    low, high = axis.get_view_interval()
    shown = [label.get_text() for label in axis.get_ticklabels()]
    return f"{axis.get_label_text()!r} {_numbers([low, high])} {shown} as {axis.get_major_formatter()(0.5)!r}"


def _is_shown(artist: Artist, axes: Axes) -> bool:
    is_text = isinstance(artist, Text) and artist in axes.texts
    return is_text or (isinstance(artist, Line2D | Rectangle | Collection) and artist is not axes.patch)


def _artist(artist: Any) -> str:
    label = artist.get_label()
    name = "" if str(label).startswith("_child") else f" {label!r}"
    alpha = "" if artist.get_alpha() is None else f" alpha {artist.get_alpha():g}"
    rest = f"{alpha} order {artist.get_zorder():g}"
    if isinstance(artist, AxLine):
        return f"line through {artist.get_xy1()} slope {artist.get_slope()} {_line(artist)}{rest}"
    if isinstance(artist, Line2D):
        x, y = (_numbers(np.asarray(data, dtype=float)) for data in artist.get_data())
        return f"line{name} {x} {y} {_line(artist)}{rest}"
    if isinstance(artist, Rectangle):
        sides = _numbers([*artist.get_xy(), artist.get_width(), artist.get_height()])
        return f"bar{name} {sides} {to_hex(artist.get_facecolor())}{rest}"
    if isinstance(artist, LineCollection):
        return f"bars {[_numbers(np.ravel(each)) for each in artist.get_segments()]}{rest}"
    if isinstance(artist, Collection):
        points = artist.get_paths()[0].vertices if artist.get_paths() else []
        return f"area {_numbers(np.ravel(points))} {to_hex(artist.get_facecolor()[0])}{rest}"
    return f"text {artist.get_text()!r} {_numbers(artist.get_position())} {artist.get_fontsize():g}{rest}"


def _line(line: Line2D) -> str:
    _, dashes = line._unscaled_dash_pattern  # type: ignore[attr-defined]
    mark = f"{line.get_marker()} {line.get_markersize():g} {line.get_markerfacecolor()} {line.get_markevery()}"
    return f"{to_hex(line.get_color())} {line.get_linestyle()} {dashes} {line.get_linewidth():.2f} mark {mark}"


def _numbers(values: Iterable[float]) -> str:
    return f"[{' '.join(f'{value:.4g}' for value in values)}]"
