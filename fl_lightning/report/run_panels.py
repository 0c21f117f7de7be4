"""The panels of a run's picture: its clients, its curves and the scores of its clients."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fl_lightning.data import FederatedDataModule
from fl_lightning.partitioners.client_axis import label_clients, names_of
from fl_lightning.partitioners.short_texts import labels
from fl_lightning.report.drawing import legend_columns, whole_rounds
from fl_lightning.report.metric_names import is_share, metric_name
from fl_lightning.report.palette import color, dashes, mark
from fl_lightning.representation import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curves = dict[str, list[tuple[int, float]]]
_STAGES = ("train", "val", "test")  # each has one colour in all panels
_FEW_POINTS = 30  # a curve of fewer points has marks at all of them
_MARK_EVERY = 0.12  # of the panel's diagonal
_MOST_CLASSES = 12  # in the legend of a panel
_LONGEST = 52  # characters of a curve's name
_LEGEND_OFFSET = 0.42  # inches from the axes to the legend, with the ticks and the label between them
_MANY_BARS = 60  # without gaps between them


def draw_clients(axes: Axes, data: FederatedDataModule) -> None:
    """Draw the samples of each client."""
    data.plot(axes)
    legend = axes.get_legend()
    if legend is not None and len(legend.get_texts()) > _MOST_CLASSES:
        legend.remove()


def draw_curves(axes: Axes, curves: Curves, unit: str) -> None:
    """Draw curves by round or epoch; what was evaluated once, after the fit, is a mark.

    Curves without a finite value are named.
    """
    missing = []
    numbers = _numbered(curves)
    names = _names(numbers)
    for (name, place), shown in zip(numbers.items(), names, strict=True):
        rounds, values = zip(*curves[name], strict=True)
        finite = any(map(math.isfinite, values))
        if not finite:
            missing.append(f"{shown}: no finite value in {counted(len(values), unit)}")
        [line] = axes.plot(rounds, values, label=shown if finite else f"{shown}: not finite", color=color(place))
        few = len(values) < _FEW_POINTS
        if place < len(_STAGES):  # a wide line with small marks shows below a thin one with rings
            line.set(linestyle=dashes(place), linewidth=2.0, marker=mark(place) if few else "", markersize=4)
        else:
            line.set(linestyle=dashes(place), linewidth=1.2, marker=mark(place), markersize=7, markerfacecolor="none")
            line.set_markevery(None if few else _MARK_EVERY)
    _keep_rounds(axes, curves)
    share = is_share(next(iter(curves)))
    if share:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    kinds = {metric_name(name.removesuffix("_clients")) for name in curves}
    several = "score" if share else "loss" if all("loss" in name for name in curves) else "value"
    axes.set(xlabel=unit, ylabel=labels([kinds.pop()])[0] if len(kinds) == 1 else several)
    axes.spines[["top", "right"]].set_visible(False)
    whole_rounds(axes)
    if len(missing) == len(curves):
        axes.text(0.5, 0.5, "\n".join(missing), transform=axes.transAxes, ha="center", va="center", fontsize=9)
        axes.set_yticks([])
        return
    _with_commas(axes)
    _add_legend(axes, names)


def legend_lines(names: Iterable[str], width: float) -> int:
    """Return the number of lines of the legend of some curves below axes of a width in inches."""
    shown = _names(_numbered(names))
    return -(-len(shown) // legend_columns(shown, width))


def is_staged(name: str) -> bool:
    """Whether a metric is of training, validation or test."""
    return _stage(name) < len(_STAGES)


def _names(names: Iterable[str]) -> list[str]:
    return labels([metric_name(name, stage=True) for name in names], _LONGEST)


def _add_legend(axes: Axes, names: Sequence[str]) -> None:
    """Put the legend below the label of the x axis, whatever the height of the axes."""
    from matplotlib.transforms import ScaledTranslation

    figure = axes.figure.get_figure(root=True)
    columns = legend_columns(names, figure.get_figwidth() / axes.get_gridspec().ncols)  # type: ignore[union-attr]
    below = axes.transAxes + ScaledTranslation(0, -_LEGEND_OFFSET, figure.dpi_scale_trans)
    legend = axes.legend(frameon=False, fontsize=9, ncols=columns, loc="upper center")
    legend.set_bbox_to_anchor((0.5, 0), below)


def _keep_rounds(axes: Axes, curves: Curves) -> None:
    """Let the x axis have all rounds, also those without a finite value."""
    rounds = [number for points in curves.values() for number, _ in points]
    axes.update_datalim([(min(rounds), 0), (max(rounds), 0)], updatey=False)
    axes.autoscale_view()


def _with_commas(axes: Axes) -> None:
    """Write thousands with commas."""
    low, high = axes.get_ylim()
    if 1e3 <= max(abs(low), abs(high)) < 1e7 and high - low >= 10:  # ticks at whole numbers
        axes.yaxis.set_major_formatter("{x:,.0f}")


def _numbered(names: Iterable[str]) -> dict[str, int]:
    """Return the numbers of the colours of metrics, one for each stage, those of training first."""
    free = len(_STAGES)
    numbered: dict[str, int] = {}
    for name in sorted(names, key=lambda name: (_stage(name), _natural(name))):
        stage = _stage(name)
        if stage < len(_STAGES) and stage not in numbered.values():
            numbered[name] = stage
        else:
            numbered[name], free = free, free + 1
    return numbered


def _natural(name: str) -> list[str | int]:
    """Return the parts of a name by which 2 comes before 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _stage(name: str) -> int:
    """Return the place of a metric's stage; that after the last one for any other."""
    return next((place for place, stage in enumerate(_STAGES) if name.startswith(stage)), len(_STAGES))


def draw_scores(
    axes: Axes, scores: Mapping[str, Mapping[int, float]], metric: str | None, client_names: Sequence[str] | None
) -> None:
    """Draw the score of each client, sorted within each set; ``metric`` is its name in the log, if that is known."""
    names = {"val": "validation", "test": "test"}
    start = 0
    places: list[int] = []
    clients: list[str] = []
    known = {stage: _finite(values) for stage, values in scores.items()}
    total = sum(map(len, known.values()))
    for stage, values in known.items():
        here = range(start, start + len(values))
        axes.bar(here, list(values.values()), 1.0 if total > _MANY_BARS else 0.8, color=color(_stage(stage)))
        number, every = len(values), len(scores[stage])
        counts = f"{every:,}" if number == every else f"{number:,} of {every:,} finite"
        name = f"{names.get(stage, stage)} ({counts})"
        centre = start + (max(1, number) - 1) / 2
        axes.text(centre, 1.0, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=9)
        if values:
            mean = sum(values.values()) / number
            axes.plot([start - 0.5, start + number - 0.5], [mean, mean], color="black", linewidth=1)
        places += here
        clients += names_of(list(values), client_names)
        start += max(1, number) + 1
    if clients:
        label_clients(axes, places, clients, all_or_none=True)
    else:
        axes.set_xticks([])
    name = "score" if metric is None else labels([metric_name(metric.removesuffix("_clients"))])[0]
    axes.set(xlabel="client, lowest first (line: mean)", ylabel=f"{name} of the last evaluation")
    in_unit = all(0 <= value <= 1 for values in known.values() for value in values.values())
    if in_unit and (metric is None or is_share(metric)):
        axes.set_ylim(0, 1.03)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    else:
        _with_commas(axes)
    axes.spines[["top", "right"]].set_visible(False)


def _finite(values: Mapping[int, float]) -> dict[int, float]:
    """Return the finite values, the lowest first."""
    return {client: value for client, value in sorted(values.items(), key=lambda item: item[1]) if math.isfinite(value)}
