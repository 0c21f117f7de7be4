"""The picture of one run: its clients, its curves and the scores of its clients, from a CSV log."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

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
_STAGES = ("train", "val", "test")  # each has one colour in all panels
#: Sums over clients beside their mean; the panel of the clients' scores shows each client.
_SPREADS = tuple(
    f"_{of}_{end}" for of in ("clients", "personal") for end in ("std", "min", "max", "lowest10", "weighted")
)
_MOST_METRICS = 3  # with panels of their own, beside shares and losses
_MOST_CLASSES = 12  # in the legend of a panel
_FEW_POINTS = 30  # a curve of fewer points has marks at all of them


@dataclass(frozen=True, eq=False, repr=False)
class RunPicture(Drawn):
    """The picture of a run, which a notebook shows.

    Attributes:
        figure: The figure; it is not pyplot's. ``savefig(path)`` writes it.
    """

    figure: Figure

    def __repr__(self) -> str:
        return f"RunPicture({len(self.figure.axes)} panels; `.savefig(path)` writes it)"


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
    curves, unit = _curves_of(log), _unit(log)
    panels: list[Callable[[Axes], None]] = [] if data is None else [partial(_draw_clients, data=data)]
    panels += [partial(_draw_curves, {name: curves[name] for name in names}, unit) for names in _kinds(curves)]
    scores = {stage: values for stage, values in (clients or {}).items() if values}
    if scores:
        metrics = {metric_name(name): name for name in curves if name.endswith("_clients")}
        metric = next(iter(metrics.values())) if len(metrics) == 1 else None
        panels.append(partial(_draw_scores, scores, metric, None if data is None else data.client_names))
    if not panels:
        raise ValueError(
            "`log_dir` has no loss, no accuracy and no other metric of training, validation or test by round or "
            f"epoch, so there is nothing to draw, got {log_dir}."
        )
    columns = len(panels) if len(panels) < 4 else (len(panels) + 1) // 2
    rows = -(-len(panels) // columns)
    height = 3.4 + 0.1 * max(map(len, _kinds(curves)), default=0)  # the legend has two columns
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
    logs, folders = [], list(log_dir) if is_sequence(log_dir) else [log_dir]  # type: ignore[arg-type]
    check("The number of folders in `log_dir`", len(folders), Count)
    for folder in folders:
        path = Path(folder) / "metrics.csv"  # type: ignore[arg-type]
        if not path.is_file():
            raise FileNotFoundError(
                f"`log_dir` must hold metrics.csv, but there is no {path}. Give that of a CSVLogger that has logged a "
                "fit: Trainer(logger=CSVLogger('runs'))."
            )
        log = pd.read_csv(path, dtype=str, keep_default_na=False)
        counters = [name for name in log if name.rpartition("-")[2] in ("epoch", "round")]
        prefix = min(counters, key=len, default="epoch")[: -len("epoch")]  # "round" is as long
        logs.append(log.rename(columns=lambda name, prefix=prefix: name.removeprefix(prefix)))
    return pd.concat(logs, ignore_index=True).fillna("")


def _unit(log: pd.DataFrame) -> str:
    return "round" if "round" in log and (log["round"] != "").any() else "epoch"


def _curves_of(log: pd.DataFrame) -> Curves:
    unit = _unit(log)
    values = log[log[unit] != ""].drop(columns=["step", "epoch" if unit == "round" else "round"], errors="ignore")
    values[unit] = values[unit].astype(float).astype(int)
    if unit == "epoch":  # epochs count from 0, and an evaluation after the fit has the next one
        values = values[[name for name in values if not name.endswith("_step")]]
        trained = values.loc[(values.filter(regex="^train") != "").any(axis=1), "epoch"]
        values["epoch"] = 1 + values["epoch"].clip(upper=trained.max() if len(trained) else None)
    curves: Curves = {}
    for name in values.columns.drop(unit):
        points = values.loc[values[name] != "", [unit, name]].drop_duplicates(unit, keep="last").sort_values(unit)
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
    others = others if len(others) <= _MOST_METRICS else [[name for names in others for name in names]]
    return [names for names in (shares, losses, *others) if names]


def _stage(name: str) -> int:
    """Return the place of a metric's stage, which is that of its colour; that after the last one for any other."""
    return next((place for place, stage in enumerate(_STAGES) if name.startswith(stage)), len(_STAGES))


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
            axes.plot(
                rounds,
                values,
                color=color(stage),
                label=shown,
                linestyle=DASHES[number % len(DASHES)],
                linewidth=1.2 if number else 2.0,  # a wide line with small marks shows below thin ones with rings
                marker=MARKS[(stage + number) % len(MARKS)],
                markersize=7 if number else 4,
                markerfacecolor="none" if number else None,
                markevery=0.12 if len(values) > _FEW_POINTS else None,
            )
    places = [number for points in curves.values() for number, _ in points]
    axes.update_datalim([(min(places), 0), (max(places), 0)], updatey=False)  # also rounds without a finite value
    axes.autoscale_view()
    whole_rounds(axes)
    share = is_share(next(iter(curves)))
    kinds = {metric_name(name.removesuffix("_clients")) for name in curves}
    several = "score" if share else "loss" if all("loss" in name for name in curves) else "value"
    axes.set(xlabel=unit, ylabel=label(kinds.pop()) if len(kinds) == 1 else several)
    if len(missing) == len(curves):
        axes.text(0.5, 0.5, "\n".join(missing), transform=axes.transAxes, ha="center", va="center", fontsize=9)
        axes.set_yticks([])
        return
    if share:
        in_percent(axes.yaxis)
    axes.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))


def _draw_scores(
    scores: Mapping[str, Mapping[int, float]], metric: str | None, names: Sequence[str] | None, axes: Axes
) -> None:
    """Draw the score of each client, sorted within each set; ``metric`` is its name in the log, if that is known."""
    places: dict[int, int] = {}
    start = 0
    for stage, values in scores.items():
        finite = sorted((score, client) for client, score in values.items() if math.isfinite(score))
        heights, own = [score for score, _ in finite], range(start, start + len(finite))
        places |= dict(zip(own, [client for _, client in finite], strict=True))
        start += max(1, len(finite)) + 1
        axes.bar(own, heights, color=color(_stage(stage)))
        counts = f"{len(values):,}" if len(finite) == len(values) else f"{len(finite):,} of {len(values):,} finite"
        title = f"{'validation' if stage == 'val' else stage} ({counts})"
        middle, top = (own.start + start - 2) / 2, axes.get_xaxis_transform()
        axes.text(middle, 1.0, title, transform=top, ha="center", va="bottom", fontsize=9)
        if finite:
            axes.plot([own[0] - 0.5, own[-1] + 0.5], [sum(heights) / len(finite)] * 2, color="black", linewidth=1)
    label_clients(axes, list(places), names_of(list(places.values()), names))
    name = "score" if metric is None else label(metric_name(metric.removesuffix("_clients")))
    axes.set(xlabel="client, lowest first (line: mean)", ylabel=f"{name} of the last evaluation")
    known = [score for values in scores.values() for score in values.values() if math.isfinite(score)]
    if all(0 <= score <= 1 for score in known) and (metric is None or is_share(metric)):
        axes.set_ylim(0, 1.03)
        in_percent(axes.yaxis)
