"""Draws the scores of single runs, and differences relative to the baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fl_lightning.experiment.statistics import most_representative_fold, relative_difference
from fl_lightning.partitioners.short_texts import label, labels
from fl_lightning.report.drawing import legend, new_figure
from fl_lightning.report.experiment import Experiment
from fl_lightning.report.palette import color, mark
from fl_lightning.report.texts import metric_and_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FRAME = 1.1  # inches above and below the rows of a figure
_ROW = 0.26  # inches, at least
_ROWS = 1.6  # inches of all rows, at least


def draw_spread(experiment: Experiment, data: str) -> Figure:
    """Draw the test score of each run, with one row for each method.

    The most representative fold is in full colour, the others are pale.
    """
    figure, axes = new_figure(_height(len(experiment.methods)))
    scale = 100 if experiment.percent(data) else 1
    fold = representative_fold(experiment, data)
    for place, method in enumerate(experiment.methods):
        scores = experiment.scores(data, method)
        ordered = sorted(scores)
        offsets = np.linspace(-0.22, 0.22, len(ordered)) if len(ordered) > 1 else [0.0]
        for (run_fold, run_seed), offset in zip(ordered, offsets, strict=True):
            axes.plot(
                scale * scores[run_fold, run_seed],
                place + offset,
                marker=mark(run_fold),
                color=color(place),
                alpha=1.0 if fold in (None, run_fold) else 0.35,
                markersize=5,
                linestyle="none",
            )
        if len(scores) > 1:
            mean = scale * float(np.mean(list(scores.values())))
            axes.plot([mean, mean], [place - 0.3, place + 0.3], color="black", linewidth=1.2)
    _finish(axes, experiment.methods, f"test {metric_and_unit(experiment, data)}", data)
    return figure


def representative_fold(experiment: Experiment, data: str) -> int | None:
    """Return the fold whose gap between a method and the baseline is nearest to the mean gap over folds.

    The method is RADFed, or the last one of a table without RADFed.

    Returns:
        The fold; ``None`` if there are fewer than two methods, or fewer than three folds: of two folds none is nearer
        to their mean.
    """
    others = [method for method in experiment.methods if method != experiment.baseline]
    if not others:
        return None
    method = "RADFed" if "RADFed" in others else others[-1]
    own, base = (_by_fold(experiment.scores(data, name)) for name in (method, experiment.baseline))
    shared = sorted(set(own) & set(base))
    if len(shared) < 3:
        return None
    return most_representative_fold({fold: own[fold] for fold in shared}, {fold: base[fold] for fold in shared})


def draw_comparison(experiment: Experiment, title: str, names: Sequence[str]) -> Figure | None:
    """Draw the differences relative to the baseline on some data sets, with a group of bars for each method.

    A bar is the difference of the means, a dot that of one pair of runs.

    Returns:
        The figure; ``None`` if fewer than two of the data sets have runs, or there is no method beside the baseline.
    """
    bases = {name: _mean(experiment, name, experiment.baseline) for name in names if name in experiment.data}
    present = {name: base for name, base in bases.items() if base}  # nothing is relative to 0
    others = [method for method in experiment.methods if method != experiment.baseline]
    if len(present) < 2 or not others:
        return None
    figure, axes = new_figure(_height(len(others), len(present)))
    width = 0.8 / len(present)
    names = labels(list(present))
    for place, (data, base) in enumerate(present.items()):
        means = [_mean(experiment, data, method) for method in others]
        lengths = [100 * relative_difference(mean, base) if mean is not None else math.nan for mean in means]
        positions = np.arange(len(others)) + (place - (len(present) - 1) / 2) * width
        axes.barh(positions, lengths, 0.92 * width, color=color(place), alpha=0.55, label=names[place])
        for position, method in zip(positions, others, strict=True):
            _draw_pairs(axes, experiment, data, method, position)
    axes.axvline(0, color="black", linewidth=0.8)
    _finish(axes, others, f"relative to {experiment.baseline}, %", title)
    legend(figure, names)
    return figure


def _draw_pairs(axes: Axes, experiment: Experiment, data: str, method: str, position: float) -> None:
    """Draw the relative difference of each pair of runs."""
    own, base = experiment.pairs(data, method)
    changes = [100 * relative_difference(a, b) for a, b in zip(own, base, strict=True) if b != 0]
    if len(changes) > 1:
        axes.plot(changes, [position] * len(changes), "o", color="black", markersize=2.2, alpha=0.7)


def _mean(experiment: Experiment, data: str, method: str) -> float | None:
    scores = list(experiment.scores(data, method).values())
    return float(np.mean(scores)) if scores else None


def _height(rows: int, bars: int = 1) -> float:
    """Return the height in inches of a figure with a row for each method, and of bars in each row."""
    return _FRAME + max(_ROWS, rows * max(_ROW, 0.16 * bars))


def _finish(axes: Axes, names: Sequence[str], x_label: str, title: str) -> None:
    axes.set_yticks(range(len(names)), labels(names))
    axes.tick_params(axis="y", labelsize=9, length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set(xlabel=label(x_label, 44), title=label(title, 44))
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)


def _by_fold(scores: dict[tuple[int, int], float]) -> dict[int, list[float]]:
    folds: dict[int, list[float]] = {}
    for (fold, _), score in sorted(scores.items()):
        folds.setdefault(fold, []).append(score)
    return folds
