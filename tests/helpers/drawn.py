"""What a picture shows, in words: a line for each thing, with its place, size and colour."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle


def drawn(axes: Axes) -> list[str]:
    """Return a line for each bar, line and text of some axes, and for what stands around them."""
    found = [f"{axes.get_xlabel()} | {axes.get_ylabel()} | {axes.get_title()} in {axes.title.get_fontsize():g}"]
    found.append("without " + " ".join(side for side, spine in axes.spines.items() if not spine.get_visible()))
    found.append(f"from {numbers(*axes.get_xlim(), *axes.get_ylim())}")
    for bar in axes.patches:
        assert isinstance(bar, Rectangle)
        place = numbers(*bar.get_xy(), bar.get_width(), bar.get_height())
        edge = f"{to_hex(bar.get_edgecolor())} {bar.get_linewidth():g}" if bar.get_edgecolor()[3] else "no edge"
        found.append(f"bar {place} {to_hex(bar.get_facecolor())} {edge} {bar.get_hatch() or ''}".strip())
    for line in axes.lines:
        x, y = line.get_data()
        look = f"{to_hex(line.get_color())} {line.get_linewidth():g} {line.get_linestyle()} {line.get_marker()}"
        found.append(f"line {numbers(*x)} at {numbers(*y)} {look}")
    for text in axes.texts:
        look = f"{text.get_ha()} {text.get_va()} in {text.get_fontsize():g}"
        found.append(f"text {numbers(*text.get_position())} {text.get_text()!r} {look}")
    ticks = axes.get_xticklabels()
    sizes = {numbers(tick.get_fontsize(), tick.get_rotation()) for tick in ticks}
    found.append(f"ticks {' '.join(tick.get_text() for tick in ticks)} in {' or '.join(sorted(sizes))}")
    legend = axes.get_legend()
    if legend is not None:
        names = [text.get_text() for text in legend.get_texts()]
        frame = "framed" if legend.get_frame_on() else "without frame"
        place = numbers(*axes.transAxes.inverted().transform(legend.get_bbox_to_anchor().get_points()[0]))
        sizes = {numbers(text.get_fontsize(), legend.labelspacing) for text in legend.get_texts()}
        title = legend.get_title().get_text()
        found.append(f"legend {title!r} {names} at {place} {legend._loc} {frame} in {' or '.join(sorted(sizes))}")
    return found


def numbers(*values: Any) -> str:
    return " ".join(f"{float(value):.4g}" for value in values)
