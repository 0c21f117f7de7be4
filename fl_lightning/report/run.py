"""The picture of one run: its clients, its curves and the scores of its clients, from a CSV log."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_lightning.arguments import check_instance, check_path, is_sequence
from fl_lightning.data import FederatedDataModule
from fl_lightning.partitioners.notebook import Drawn
from fl_lightning.report.drawing import LEGEND_LINE
from fl_lightning.report.metric_names import is_share, metric_name
from fl_lightning.report.run_panels import Curves, draw_clients, draw_curves, draw_scores, is_staged, legend_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LogFolders = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_SPREADS = ("_std", "_min", "_max")  # of clients; the panel of the clients' scores shows more
_MOST_METRICS = 3  # with panels of their own, beside shares and losses
_WIDTH, _HEIGHT = 5.2, 3.8  # inches of a panel
_LEGEND_LINES = 2  # for which a panel has room


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
    if data is not None:
        check_instance("data", data, FederatedDataModule)
    if clients is not None:
        for values in (clients, *(clients.values() if isinstance(clients, Mapping) else ())):
            check_instance("clients", values, Mapping, "Give `ClientMetrics.values`, the scores of each stage.")
    logged = _rows_of(log_dir)
    curves, unit = _curves_of(logged), "round" if _has_rounds(logged) else "epoch"
    shares = [name for name in curves if is_share(name) and not name.endswith(_SPREADS)]
    losses = [name for name in curves if "loss" in name]
    others = [name for name in curves if is_staged(name) and not name.endswith(_SPREADS)]
    kinds = [shares, losses, *_by_metric([name for name in others if name not in {*shares, *losses}])]
    scores = {stage: values for stage, values in (clients or {}).items() if values}
    panels: list[tuple[int, Callable[[Axes], None]]] = []  # the lines of the legend below, and what draws the panel
    if data is not None:
        panels.append((0, partial(draw_clients, data=data)))
    for names in filter(None, kinds):
        draw = partial(draw_curves, curves={name: curves[name] for name in names}, unit=unit)
        panels.append((legend_lines(names, _WIDTH), draw))
    if scores:
        metric, client_names = _metric_of_clients(curves), None if data is None else data.client_names
        panels.append((0, partial(draw_scores, scores=scores, metric=metric, client_names=client_names)))
    if not panels:
        raise ValueError(
            "`log_dir` has no loss, no accuracy and no other metric of training, validation or test by round or "
            f"epoch, so there is nothing to draw, got {log_dir}."
        )
    return RunPicture(_figure_of(panels))


def _figure_of(panels: Sequence[tuple[int, Callable[[Axes], None]]]) -> Figure:
    """Return the figure of some panels; rows with long legends are higher."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = len(panels) if len(panels) < 4 else (len(panels) + 1) // 2
    lines = [max(number for number, _ in panels[start : start + columns]) for start in range(0, len(panels), columns)]
    height = sum(_HEIGHT + LEGEND_LINE * max(0, number - _LEGEND_LINES) for number in lines)
    figure = Figure(figsize=(_WIDTH * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    places = figure.subplots(len(lines), columns, squeeze=False).ravel()
    for axes, (_, draw) in zip(places, panels, strict=False):
        draw(axes)
    for unused in places[len(panels) :]:
        unused.set_axis_off()
    return figure


def read_curves(log_dir: LogFolders) -> Curves:
    """Return the values by round of everything that a ``CSVLogger`` has logged by round.

    A value that is logged again for a round replaces the earlier one. A log without rounds, of central training, gives
    the values by epoch, from 1; what is logged after the fit belongs to the last epoch of training. The logger's
    ``prefix`` is no part of the names.

    Args:
        log_dir: The logger's ``log_dir``, or a list of them.

    Raises:
        FileNotFoundError: If there is no ``metrics.csv``.
        ValueError: If the list is empty.
    """
    return _curves_of(_rows_of(log_dir))


def _rows_of(log_dir: LogFolders) -> list[dict[str, str]]:
    return [row for folder in _folders(log_dir) for row in _rows(folder / "metrics.csv")]


def _has_rounds(rows: Sequence[Mapping[str, str]]) -> bool:
    return any(row.get("round") for row in rows)


def _curves_of(rows: Sequence[Mapping[str, str]]) -> Curves:
    values: dict[str, dict[int, float]] = {}
    by_round = _has_rounds(rows)
    places = [row.get("round") if by_round else row.get("epoch") for row in rows]
    trained = [
        int(float(epoch))
        for row, epoch in zip(rows, places, strict=True)
        if epoch and any(text and name.startswith("train") for name, text in row.items())
    ]
    for row, place in zip(rows, places, strict=True):
        if not place:
            continue
        at = int(float(place))
        if not by_round:  # epochs count from 0, and an evaluation after the fit has the next one
            at = 1 + min(at, max(trained, default=at))
        for name, text in row.items():
            if text and name not in ("round", "epoch", "step") and (by_round or not name.endswith("_step")):
                values.setdefault(name, {})[at] = float(text)
    return {name: sorted(points.items()) for name, points in values.items()}


def _folders(log_dir: Any) -> list[Path]:
    folders = log_dir if is_sequence(log_dir) else [log_dir]
    if not len(folders):
        raise ValueError("`log_dir` must be a folder, or a list of at least one, got [].")
    for folder in folders:
        owner = "Give its `log_dir`. " if hasattr(folder, "log_dir") else ""
        check_path("log_dir", folder, f"{owner}Several are a list of them.")
    return [Path(folder) for folder in folders]


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise FileNotFoundError(
            f"`log_dir` must hold metrics.csv, but there is no {path}. Give that of a CSVLogger that has logged a "
            "fit: Trainer(logger=CSVLogger('runs'))."
        )
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    prefix = _prefix_of(rows[0] if rows else ())
    return [{name.removeprefix(prefix): text for name, text in row.items()} for row in rows]


def _prefix_of(columns: Iterable[str]) -> str:
    """Return what the logger's ``prefix`` has put before all names: what stands before "epoch" or "round"."""
    counters = [name for name in columns if name.rpartition("-")[2] in ("epoch", "round")]
    return min(counters, key=len, default="epoch")[: -len("epoch")]  # "round" is as long


def _by_metric(names: Sequence[str]) -> list[list[str]]:
    """Return the curves of each metric, for panels of their own; all in one panel if the metrics are many."""
    metrics: dict[str, list[str]] = {}
    for name in names:
        metrics.setdefault(metric_name(name.removesuffix("_clients")), []).append(name)
    return list(metrics.values()) if len(metrics) <= _MOST_METRICS else [list(names)]


def _metric_of_clients(names: Iterable[str]) -> str | None:
    """Return a log's name of the one metric of clients; ``None`` if there are several, or none."""
    found = {metric_name(name): name for name in names if name.endswith("_clients")}
    return next(iter(found.values())) if len(found) == 1 else None
