"""The picture of one run: its clients, its curves and the scores of its clients, from a CSV log."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fl_lightning.data import FederatedDataModule
from fl_lightning.notebook import Drawn
from fl_lightning.partitioners.plot import label_clients, names_of
from fl_lightning.report.drawing import DASHES, MARKS, color, in_percent, label, style, whole_rounds
from fl_lightning.report.names import is_share, metric_name
from fl_lightning.settings import Count, check, is_sequence
from fl_lightning.words import quantity

LogFolders = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Curves = dict[str, list[tuple[int, float]]]
#: Each stage has one colour in all panels.
_STAGES = ("train", "val", "test")
#: Endings of numbers over clients beside their mean. The panel of the clients' scores shows each client.
_SPREADS = (
    "_clients_std",
    "_clients_min",
    "_clients_max",
    "_clients_lowest10",
    "_clients_weighted",
    "_personal_std",
    "_personal_min",
    "_personal_max",
    "_personal_lowest10",
    "_personal_weighted",
)
#: So many metrics other than shares and losses have panels of their own.
_MOST_METRICS = 3
#: The legend of a panel names so many classes.
_MOST_CLASSES = 12
#: A curve of fewer points has marks at all of them.
_FEW_POINTS = 30


@dataclass(frozen=True, eq=False, repr=False)
class RunPicture(Drawn):
    """The picture of a run, which a notebook shows.

    Attributes:
        figure: The figure; it is not pyplot's. ``savefig(path)`` writes it.
    """

    figure: Figure

    def __repr__(self) -> str:
        panels = sum(axes.axison for axes in self.figure.axes)
        return f"RunPicture({panels} panels; `.savefig(path)` writes it)"


def plot_run(
    log_dir: LogFolders,
    data: FederatedDataModule | None = None,
    clients: Mapping[str, Mapping[int, float]] | None = None,
) -> RunPicture:
    """Draw a run that a ``CSVLogger`` has logged: shares such as accuracies, losses and other metrics over rounds.

    A run without rounds, of central training, is drawn over epochs.

    Args:
        log_dir: The logger's ``log_dir``, which holds ``metrics.csv``; a list of them for a run that was resumed.
        data: The data module, after the fit; it adds a panel with the samples of each client, by class
            if there are classes.
        clients: ``ClientMetrics.values``; adds a panel with the score of each client in the last evaluation.

    Returns:
        The picture; ``savefig(path)`` writes it, and a notebook shows it.

    Raises:
        FileNotFoundError: If there is no ``metrics.csv``.
        ValueError: If there is nothing to draw.
    """
    check("`data`", data, FederatedDataModule | None)
    check("`clients`", clients, Mapping | None)
    log = _read(log_dir)
    unit = _unit(log)
    curves = _curves_of(log)
    kinds = _kinds(curves)
    panels: list[Callable[[Axes], None]] = []
    if data is not None:
        panels.append(partial(_draw_clients, data=data))
    for names in kinds:
        panels.append(partial(_draw_curves, {name: curves[name] for name in names}, unit))
    scores = {stage: values for stage, values in (clients or {}).items() if values}
    if scores:
        # If the log has one metric of clients, in several stages maybe, the scores are of this metric.
        metrics = {metric_name(name): name for name in curves if name.endswith("_clients")}
        metric = None
        if len(metrics) == 1:
            [metric] = metrics.values()
        client_names = None
        if data is not None:
            client_names = data.client_names
        panels.append(partial(_draw_scores, scores, metric, client_names))
    if not panels:
        raise ValueError(
            "`log_dir` has no loss, no accuracy and no other metric of training, validation or test by round or "
            f"epoch, so there is nothing to draw, got {log_dir}."
        )
    # Four panels and more are in two rows.
    rows = 1 if len(panels) < 4 else 2
    columns = math.ceil(len(panels) / rows)
    # A line of a legend has two of a panel's curves, and is 0.2 inches high.
    height = 3.4 + 0.1 * max((len(names) for names in kinds), default=0)
    with style():
        figure = Figure(figsize=(5.2 * columns, height * rows))
        places = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, draw in zip(places, panels, strict=False):
            draw(axes)
        for axes in places[len(panels) :]:
            axes.set_axis_off()
    return RunPicture(figure)


def read_curves(log_dir: LogFolders) -> Curves:
    """Return the values by round of everything that a ``CSVLogger`` has logged by round.

    A value that is logged again for a round replaces the earlier one. A log without rounds, of central training, gives
    the values by epoch, from 1; what is logged after the fit belongs to the last epoch of training. The logger's
    ``prefix`` is no part of the names.

    Args:
        log_dir: The logger's ``log_dir``, or a list of them.

    Raises:
        FileNotFoundError: If there is no ``metrics.csv``.
    """
    return _curves_of(_read(log_dir))


def _read(log_dir: LogFolders) -> pd.DataFrame:
    """Return the rows of some logs, as texts, and without their prefix; the empty string is no value."""
    folders: list[Any] = list(log_dir) if is_sequence(log_dir) else [log_dir]  # type: ignore[arg-type]
    check("The number of folders in `log_dir`", len(folders), Count)
    logs = []
    for folder in folders:
        path = Path(folder) / "metrics.csv"
        if not path.is_file():
            raise FileNotFoundError(
                f"`log_dir` must hold metrics.csv, but there is no {path}. Give that of a CSVLogger that has logged a "
                "fit: Trainer(logger=CSVLogger('runs'))."
            )
        log = pd.read_csv(path, dtype=str, keep_default_na=False)
        # With the prefix "mine" the epoch's column is "mine-epoch".
        counters = [name for name in log.columns if name.rpartition("-")[2] in ("epoch", "round")]
        counter = min(counters, key=len, default="epoch")
        prefix = counter.removesuffix("epoch").removesuffix("round")
        logs.append(log.rename(columns={name: name.removeprefix(prefix) for name in log.columns}))
    return pd.concat(logs).fillna("")


def _unit(log: pd.DataFrame) -> str:
    """Return what a log counts: rounds, or the epochs of central training."""
    if "round" in log and (log["round"] != "").any():
        return "round"
    return "epoch"


def _curves_of(log: pd.DataFrame) -> Curves:
    """Return the values by round, or by epoch, of the rows of a log."""
    unit = _unit(log)
    other = "epoch" if unit == "round" else "round"
    values = log[log[unit] != ""].drop(columns=["step", other], errors="ignore")
    values[unit] = values[unit].astype(float).astype(int)
    if unit == "epoch":
        values = values[[name for name in values.columns if not name.endswith("_step")]]
        # Epochs count from 0. An evaluation after the fit has the next one, and is of the last epoch of training.
        is_trained = (values.filter(regex="^train") != "").any(axis=1)
        trained = values.loc[is_trained, "epoch"]
        last = trained.max() if len(trained) else None
        values["epoch"] = 1 + values["epoch"].clip(upper=last)
    curves: Curves = {}
    for name in values.columns.drop(unit):
        points = values.loc[values[name] != "", [unit, name]]
        points = points.drop_duplicates(unit, keep="last").sort_values(unit)
        if len(points):
            curves[name] = list(zip(points[unit].tolist(), points[name].astype(float).tolist(), strict=True))
    return curves


# ---- panels ----


def _kinds(curves: Curves) -> list[list[str]]:
    """Return the curves of each panel: shares, losses, and each other metric; all others in one if they are many."""
    shown = [name for name in curves if not name.endswith(_SPREADS)]
    shares = [name for name in shown if is_share(name)]
    losses = [name for name in curves if "loss" in name]
    metrics: dict[str, list[str]] = {}
    for name in shown:
        if name.startswith(_STAGES) and name not in shares and name not in losses:
            metrics.setdefault(metric_name(name.removesuffix("_clients")), []).append(name)
    others = list(metrics.values())
    if len(others) > _MOST_METRICS:
        others = [list(itertools.chain(*others))]
    return [names for names in (shares, losses, *others) if names]


def _stage(name: str) -> int:
    """Return the place of a metric's stage, which is that of its colour; that after the last one for any other."""
    for place, stage in enumerate(_STAGES):
        if name.startswith(stage):
            return place
    return len(_STAGES)


def _draw_clients(axes: Axes, data: FederatedDataModule) -> None:
    data.plot(axes)
    legend = axes.get_legend()
    if legend is not None and len(legend.get_texts()) > _MOST_CLASSES:
        legend.remove()


def _draw_curves(curves: Curves, unit: str, axes: Axes) -> None:
    """Draw curves by round or epoch; what was evaluated once, after the fit, is a mark.

    Curves without a finite value are named.
    """
    missing = []
    for stage, names in itertools.groupby(sorted(curves, key=_stage), _stage):
        for number, name in enumerate(names):
            rounds, values = zip(*curves[name], strict=True)
            shown = label(metric_name(name, stage=True))
            if not any(map(math.isfinite, values)):
                missing.append(f"{shown}: no finite value in {quantity(len(values), unit)}")
                shown = f"{shown}: not finite"
            # The first line is wide and has small marks, so that it shows below thin ones with rings.
            form: dict[str, Any] = {"linewidth": 2.0, "markersize": 4}
            if number > 0:
                form = {"linewidth": 1.2, "markersize": 7, "markerfacecolor": "none"}
            if len(values) > _FEW_POINTS:
                form["markevery"] = 0.12
            axes.plot(
                rounds,
                values,
                color=color(stage),
                label=shown,
                linestyle=DASHES[number % len(DASHES)],
                marker=MARKS[(stage + number) % len(MARKS)],
                **form,
            )
    # The axis also shows rounds without a finite value. Points are in the order of their rounds.
    first = min(points[0][0] for points in curves.values())
    last = max(points[-1][0] for points in curves.values())
    axes.update_datalim([(first, 0), (last, 0)], updatey=False)
    axes.autoscale_view()
    whole_rounds(axes)
    axes.set(xlabel=unit, ylabel=_y_label(list(curves)))
    if len(missing) == len(curves):
        axes.text(0.5, 0.5, "\n".join(missing), transform=axes.transAxes, ha="center", va="center", fontsize=9)
        axes.set_yticks([])
        return
    if is_share(next(iter(curves))):
        in_percent(axes.yaxis)
    axes.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))


def _y_label(names: Sequence[str]) -> str:
    """Return the label of the values of some curves: their metric, or a word for several metrics."""
    metrics = {metric_name(name.removesuffix("_clients")) for name in names}
    if len(metrics) == 1:
        return label(metrics.pop())
    if is_share(names[0]):
        return "score"
    if all("loss" in name for name in names):
        return "loss"
    return "value"


def _draw_scores(
    scores: Mapping[str, Mapping[int, float]], metric: str | None, names: Sequence[str] | None, axes: Axes
) -> None:
    """Draw the score of each client, sorted within each set; ``metric`` is its name in the log, if that is known."""
    places: list[int] = []
    clients: list[int] = []
    known: list[float] = []
    start = 0
    for stage, values in scores.items():
        finite = {client: score for client, score in values.items() if math.isfinite(score)}
        ranked = sorted(finite, key=lambda client: (finite[client], client))
        heights = [finite[client] for client in ranked]
        bars = range(start, start + len(ranked))
        axes.bar(bars, heights, color=color(_stage(stage)))
        if heights:
            mean = sum(heights) / len(heights)
            axes.plot([bars[0] - 0.5, bars[-1] + 0.5], [mean, mean], color="black", linewidth=1)
        counts = f"{len(values):,}"
        if len(ranked) < len(values):
            counts = f"{len(ranked):,} of {len(values):,} finite"
        shown = "validation" if stage == "val" else stage
        # A set without a finite score has room for its title.
        width = max(1, len(bars))
        middle = start + (width - 1) / 2
        above = axes.get_xaxis_transform()
        axes.text(middle, 1.0, f"{shown} ({counts})", transform=above, ha="center", va="bottom", fontsize=9)
        places += bars
        clients += ranked
        known += heights
        # There is a gap between two sets.
        start += width + 1
    label_clients(axes, places, names_of(clients, names))
    name = "score"
    if metric is not None:
        name = label(metric_name(metric.removesuffix("_clients")))
    axes.set(xlabel="client, lowest first (line: mean)", ylabel=f"{name} of the last evaluation")
    may_be_share = metric is None or is_share(metric)
    if may_be_share and all(0 <= score <= 1 for score in known):
        axes.set_ylim(0, 1.03)
        in_percent(axes.yaxis)
