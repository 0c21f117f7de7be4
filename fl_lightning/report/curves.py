"""Draws the figures of an experiment: curves with bands, the spread over runs, comparisons of data sets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fl_lightning.experiment.statistics import most_representative_fold, relative_difference, smooth
from fl_lightning.report.experiment import Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE = (5.2, 3.5)  # inches, so that the texts can be read on a phone
_DASHES = ("-", (0, (8, 1.5)), (0, (4, 1.5)), (0, (1.5, 1)))
_MARKS = "osD^vPX*<>"


def draw_curves(experiment: Experiment, data: str, column: str, label: str, interval: int = 1) -> Figure | None:
    """Draw a column of the curves by round, with one line for each method.

    Args:
        experiment: The results.
        data: Name of the data set.
        column: Name of the column.
        label: Label of the y axis.
        interval: Number of successive values in one point of the figure, a mean.

    Returns:
        The figure; ``None`` if no run has the column.
    """
    groups = {method: (data, method) for method in experiment.methods}
    return _draw(experiment, groups, column, (data, label), interval)


def draw_across(
    experiment: Experiment, title: str, names: Sequence[str], column: str, interval: int = 1
) -> Figure | None:
    """Draw a column of the baseline's curves by round, with one line for each data set.

    Returns:
        The figure; ``None`` if fewer than two of the data sets have runs.
    """
    groups = {name: (name, experiment.baseline) for name in names if name in experiment.data}
    if len(groups) < 2:
        return None
    return _draw(experiment, groups, column, (f"{title}: {experiment.baseline}", column), interval)


def _draw(
    experiment: Experiment,
    groups: Mapping[str, tuple[str, str]],
    column: str,
    texts: tuple[str, str],
    interval: int,
) -> Figure | None:
    """Draw the mean over the runs of each group as a line, and one standard deviation as a band."""
    figure, axes = _new_figure()
    drawn = 0
    for number, (name, group) in enumerate(groups.items()):
        runs = [(curve["round"], curve[column]) for curve in experiment.curves(*group) if column in curve]
        runs = [(rounds[~np.isnan(values)], values[~np.isnan(values)]) for rounds, values in runs]
        runs = [(rounds, values) for rounds, values in runs if len(values)]
        if not runs:
            continue
        length = min(len(values) for _, values in runs)
        rounds = smooth(runs[0][0][:length], interval)
        values = np.stack([smooth(run[:length], interval) for _, run in runs])
        mean = values.mean(axis=0)
        color = _color(number)
        [line] = axes.plot(rounds, mean, color=color, label=name, linewidth=1.5, linestyle=_style(number))
        if length < 30:
            line.set_marker(_MARKS[number % len(_MARKS)])
            line.set_markersize(3.5)
        if len(runs) > 1:
            sd = values.std(axis=0, ddof=1)
            axes.fill_between(rounds, mean - sd, mean + sd, color=color, alpha=0.13, linewidth=0)
        drawn += 1
    if not drawn:
        return None
    axes.set(xlabel="round", ylabel=texts[1], title=texts[0])
    _legend(figure, drawn)
    return figure


def draw_spread(experiment: Experiment, data: str) -> Figure:
    """Draw the test score of each run, with one column for each method.

    The most representative fold is in full colour, the others are pale.
    """
    figure, axes = _new_figure()
    scale = 100 if experiment.percent else 1
    fold = representative_fold(experiment, data)
    for number, method in enumerate(experiment.methods):
        scores = experiment.scores(data, method)
        ordered = sorted(scores)
        offsets = np.linspace(-0.22, 0.22, len(ordered)) if len(ordered) > 1 else [0.0]
        for (run_fold, run_seed), offset in zip(ordered, offsets, strict=True):
            axes.plot(
                number + offset,
                scale * scores[run_fold, run_seed],
                marker=_MARKS[run_fold % len(_MARKS)],
                color=_color(number),
                alpha=1.0 if fold in (None, run_fold) else 0.35,
                markersize=5,
                linestyle="none",
            )
        if scores:
            mean = scale * float(np.mean(list(scores.values())))
            axes.plot([number - 0.3, number + 0.3], [mean, mean], color="black", linewidth=1.2)
    axes.set_xticks(range(len(experiment.methods)), experiment.methods, rotation=30, ha="right")
    axes.set(ylabel="test score" + (", per cent" if experiment.percent else ""), title=data)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    return figure


def representative_fold(experiment: Experiment, data: str) -> int | None:
    """Return the fold whose gap between a method and the baseline is nearest to the mean gap over folds.

    The method is RADFed, or the last one of a table without RADFed.

    Returns:
        The fold; ``None`` if there are fewer than two folds or methods.
    """
    others = [method for method in experiment.methods if method != experiment.baseline]
    if not others:
        return None
    method = "RADFed" if "RADFed" in others else others[-1]
    own, base = (_by_fold(experiment.scores(data, name)) for name in (method, experiment.baseline))
    shared = sorted(set(own) & set(base))
    if len(shared) < 2:
        return None
    return most_representative_fold({fold: own[fold] for fold in shared}, {fold: base[fold] for fold in shared})


def draw_comparison(experiment: Experiment, title: str, names: Sequence[str]) -> Figure | None:
    """Draw the differences relative to the baseline on some data sets, side by side.

    Returns:
        The figure; ``None`` if fewer than two of the data sets have runs, or there is no method beside the baseline.
    """
    present = [name for name in names if name in experiment.data and experiment.scores(name, experiment.baseline)]
    others = [method for method in experiment.methods if method != experiment.baseline]
    if len(present) < 2 or not others:
        return None
    figure, axes = _new_figure()
    width = 0.8 / len(present)
    for place, data in enumerate(present):
        base = float(np.mean(list(experiment.scores(data, experiment.baseline).values())))
        means = [list(experiment.scores(data, method).values()) for method in others]
        heights = [100 * relative_difference(float(np.mean(m)), base) if m else math.nan for m in means]
        positions = np.arange(len(others)) + (place - (len(present) - 1) / 2) * width
        axes.bar(positions, heights, width, color=_color(place), label=data)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(others)), others, rotation=30, ha="right")
    axes.set(ylabel=f"relative to {experiment.baseline}, per cent", title=title)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    _legend(figure, len(present))
    return figure


def _by_fold(scores: dict[tuple[int, int], float]) -> dict[int, list[float]]:
    folds: dict[int, list[float]] = {}
    for (fold, _), score in sorted(scores.items()):
        folds.setdefault(fold, []).append(score)
    return folds


def _new_figure() -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.title.set_fontsize(11)
    return figure, axes


def _legend(figure: Figure, entries: int) -> None:
    """Put the legend below the axes, so that it takes none of their width."""
    if entries > 1:
        figure.legend(frameon=False, fontsize=9, ncols=min(entries, 4), loc="outside lower center", columnspacing=1.2)


def _color(number: int) -> tuple[float, ...]:
    from matplotlib import colormaps

    return tuple(colormaps["tab10"](number % 10))


def _style(number: int) -> str | tuple[int, tuple[float, ...]]:
    """Return the dashes of a line: a curve below it shows through their gaps."""
    return _DASHES[number % len(_DASHES)]
