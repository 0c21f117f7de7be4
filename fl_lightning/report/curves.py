"""Draws the curves of an experiment by round: one line for each method, or for each data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fl_lightning.experiment.statistics import smooth
from fl_lightning.partitioners.short_texts import label, labels
from fl_lightning.report.drawing import legend, new_figure, whole_rounds
from fl_lightning.report.experiment import Experiment
from fl_lightning.report.metric_names import is_share, metric_name
from fl_lightning.report.palette import color, dashes, mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEW_POINTS = 30  # a curve of fewer points has marks
_FEW_RUNS = 2  # the runs themselves are drawn, for a standard deviation of two numbers says little


@dataclass(frozen=True)
class Curve:
    """A drawn figure of curves.

    Attributes:
        figure: The figure.
        text: What lines and bands are, for a caption.
    """

    figure: Figure
    text: str


def draw_curves(experiment: Experiment, data: str, column: str, name: str = "", interval: int = 1) -> Curve | None:
    """Draw a column of the curves by round, with one line for each method.

    Args:
        experiment: The results.
        data: Name of the data set.
        column: Name of the column.
        name: Label of the y axis; the metric's name if empty.
        interval: Number of successive values in one point of the figure, a mean.

    Returns:
        The figure; ``None`` if no run has the column.
    """
    groups = {method: (data, method) for method in experiment.methods}
    return _draw(experiment, groups, column, (data, name), interval)


def draw_across(
    experiment: Experiment, title: str, names: Sequence[str], column: str, interval: int = 1
) -> Curve | None:
    """Draw a column of the baseline's curves by round, with one line for each data set.

    Returns:
        The figure; ``None`` if fewer than two of the data sets have runs.
    """
    groups = {name: (name, experiment.baseline) for name in names if name in experiment.data}
    if len(groups) < 2:
        return None
    return _draw(experiment, groups, column, (f"{title}: {experiment.baseline}", ""), interval)


def _draw(
    experiment: Experiment,
    groups: Mapping[str, tuple[str, str]],
    column: str,
    texts: tuple[str, str],
    interval: int,
) -> Curve | None:
    """Draw the mean over the runs of each group as a line, and the runs or one standard deviation around it."""
    figure, axes = new_figure()
    shown, counts, cut = [], [], False
    for place, (name, group) in enumerate(zip(labels(list(groups)), groups.values(), strict=True)):
        rounds, runs, whole = _aligned(experiment, group, column)
        if not len(rounds):
            continue
        counts.append(len(runs))
        shown.append(name)
        cut |= not whole
        _draw_group(axes, place, name, smooth(rounds, interval), np.stack([smooth(run, interval) for run in runs]))
    if not counts:
        return None
    title, y_label = texts
    axes.set(xlabel="round", ylabel=label(y_label or metric_name(column, stage=True), 44), title=label(title, 44))
    whole_rounds(axes)
    if is_share(column):
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    legend(figure, shown)
    return Curve(figure, _caption(counts, cut))


def _aligned(experiment: Experiment, group: tuple[str, str], column: str) -> tuple[np.ndarray, list[np.ndarray], bool]:
    """Return the rounds for which all runs have a value, the values of each run, and whether no round is left out."""
    runs = []
    for curve in experiment.curves(*group):
        if column in curve:
            known = ~np.isnan(curve[column])
            runs.append(dict(zip(curve["round"][known].tolist(), curve[column][known].tolist(), strict=True)))
    runs = [run for run in runs if run]
    if not runs:
        return np.empty(0), [], True
    shared = sorted(set.intersection(*(set(run) for run in runs)))
    whole = all(len(run) == len(shared) for run in runs)
    return np.array(shared), [np.array([run[number] for number in shared]) for run in runs], whole


def _draw_group(axes: Axes, place: int, name: str, rounds: np.ndarray, runs: np.ndarray) -> None:
    with np.errstate(invalid="ignore"):  # runs may have infinite values
        mean, sd = runs.mean(axis=0), runs.std(axis=0, ddof=min(1, len(runs) - 1))
    # the first lines are wider, so that a line on top of them hides none
    width = max(1.4, 2.6 - 0.4 * place)
    [line] = axes.plot(rounds, mean, color=color(place), label=name, linewidth=width, linestyle=dashes(place))
    if len(rounds) < _FEW_POINTS:
        line.set_marker(mark(place))
        line.set_markersize(3.5)
    if 1 < len(runs) <= _FEW_RUNS:
        for run in runs:
            axes.plot(rounds, run, color=color(place), linewidth=0.6, alpha=0.55, zorder=1)
    elif len(runs) > _FEW_RUNS:
        axes.fill_between(rounds, mean - sd, mean + sd, color=color(place), alpha=0.13, linewidth=0)


def _caption(counts: Sequence[int], cut: bool) -> str:
    """Return what the lines are."""
    least, most = min(counts), max(counts)
    if most == 1:
        text = "one run each"
    else:
        number = str(most) if least == most else f"{least} to {most}"
        around = "band: ± one sd" if most > _FEW_RUNS else "thin lines: the runs"
        text = f"line: mean over {number} runs, {around}"
    return text + (", where all runs of a line have values" if cut else "")
