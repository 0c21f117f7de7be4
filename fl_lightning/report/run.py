"""The picture of one run: its clients, its curves and the scores of its clients, from a CSV log."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_lightning.arguments import check_instance, check_path, is_sequence
from fl_lightning.data import FederatedDataModule
from fl_lightning.report.curves import whole_rounds
from fl_lightning.report.metric_names import is_share, metric_name
from fl_lightning.report.palette import color, dashes, mark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LogFolders = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Curves = dict[str, list[tuple[int, float]]]
_SPREADS = ("_std", "_min", "_max")  # of clients; the panel of the clients' scores shows more
_STAGES = ("train", "val", "test")  # each has one colour in all panels
_FEW_POINTS = 30  # a curve of fewer points has marks
_MOST_METRICS = 3  # with panels of their own, beside shares and losses
_WIDTH, _HEIGHT = 5.2, 3.8  # inches of a panel


@dataclass(frozen=True, eq=False, repr=False)
class RunPicture:
    """The picture of a run, which a notebook shows.

    Attributes:
        figure: The figure; it is not pyplot's.
    """

    figure: Figure

    def savefig(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the picture; ``options`` are those of matplotlib's ``Figure.savefig``."""
        self.figure.savefig(path, **options)

    def __repr__(self) -> str:
        return f"RunPicture({len(self.figure.axes)} panels; `.savefig(path)` writes it)"

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.figure.savefig(content, format="png", dpi=90)
        return content.getvalue()


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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if data is not None:
        check_instance("data", data, FederatedDataModule)
    if clients is not None:
        for values in (clients, *(clients.values() if isinstance(clients, Mapping) else ())):
            check_instance("clients", values, Mapping, "Give `ClientMetrics.values`, the scores of each stage.")
    logged = _rows_of(log_dir)
    curves, unit = _curves_of(logged), "round" if _has_rounds(logged) else "epoch"
    shares = [name for name in curves if is_share(name) and not name.endswith(_SPREADS)]
    losses = [name for name in curves if "loss" in name]
    others = [name for name in curves if _stage(name) < len(_STAGES) and not name.endswith(_SPREADS)]
    kinds = [shares, losses, *_by_metric([name for name in others if name not in {*shares, *losses}])]
    drawn = [names for names in kinds if names]
    scores = {stage: values for stage, values in (clients or {}).items() if values}
    panels = (data is not None) + len(drawn) + bool(scores)
    if not panels:
        raise ValueError(
            "`log_dir` has no loss, no accuracy and no other metric of training, validation or test by round or "
            f"epoch, so there is nothing to draw, got {log_dir}."
        )
    columns = panels if panels < 4 else (panels + 1) // 2
    rows = -(-panels // columns)
    figure = Figure(figsize=(_WIDTH * columns, _HEIGHT * rows), layout="constrained")
    FigureCanvasAgg(figure)
    places = iter(figure.subplots(rows, columns, squeeze=False).flat)
    if data is not None:
        _draw_clients(next(places), data)
    for names in drawn:
        _draw_curves(next(places), {name: curves[name] for name in names}, unit)
    if scores:
        _draw_scores(next(places), scores, _metric_of_clients(curves))
    for unused in places:
        unused.set_axis_off()
    return RunPicture(figure)


def read_curves(log_dir: LogFolders) -> Curves:
    """Return the values by round of everything that a ``CSVLogger`` has logged by round.

    A value that is logged again for a round replaces the earlier one. A log without rounds, of central training, gives
    the values by epoch, from 1; what is logged after the fit belongs to the last epoch of training.

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
        check_path("log_dir", folder, "Several are a list of them.")
    return [Path(folder) for folder in folders]


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise FileNotFoundError(
            f"`log_dir` must hold metrics.csv, but there is no {path}. Give that of a CSVLogger that has logged a "
            "fit: Trainer(logger=CSVLogger('runs'))."
        )
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _draw_clients(axes: Axes, data: FederatedDataModule) -> None:
    data.plot(axes)
    legend = axes.get_legend()
    if legend is not None and len(legend.get_texts()) > 12:
        legend.remove()


def _draw_curves(axes: Axes, curves: Curves, unit: str) -> None:
    """Draw curves by round or epoch; what was evaluated once, after the fit, is a mark."""
    for name, place in _numbered(curves):
        points = curves[name]
        rounds, values = zip(*points, strict=True)
        [line] = axes.plot(rounds, values, label=metric_name(name, stage=True), color=color(place))
        line.set_linestyle(dashes(place))
        if len(points) < _FEW_POINTS:
            line.set(marker=mark(place), markersize=4)
    share = is_share(next(iter(curves)))
    if share:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    kinds = {metric_name(name.removesuffix("_clients")) for name in curves}
    several = "score" if share else "loss" if all("loss" in name for name in curves) else "value"
    axes.set(xlabel=unit, ylabel=kinds.pop() if len(kinds) == 1 else several)
    axes.spines[["top", "right"]].set_visible(False)
    whole_rounds(axes)
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)


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


def _numbered(names: Iterable[str]) -> list[tuple[str, int]]:
    """Return names of metrics, those of training first, and the numbers of their colours: one for each stage."""
    free = len(_STAGES)
    numbered: dict[str, int] = {}
    for name in sorted(names, key=_stage):
        stage = _stage(name)
        if stage < len(_STAGES) and stage not in numbered.values():
            numbered[name] = stage
        else:
            numbered[name], free = free, free + 1
    return list(numbered.items())


def _stage(name: str) -> int:
    """Return the place of a metric's stage; that after the last one for any other."""
    return next((place for place, stage in enumerate(_STAGES) if name.startswith(stage)), len(_STAGES))


def _draw_scores(axes: Axes, scores: Mapping[str, Mapping[int, float]], metric: str | None) -> None:
    """Draw the score of each client, sorted within each set; ``metric`` is its name in the log, if that is known."""
    names = {"val": "validation", "test": "test"}
    start, ticks = 0, []
    for stage, values in scores.items():
        ordered = sorted(values.items(), key=lambda item: item[1])
        heights = [value for _, value in ordered]
        axes.bar(range(start, start + len(heights)), heights, color=color(_stage(stage)))
        centre = start + (len(heights) - 1) / 2
        name = f"{names.get(stage, stage)} ({len(heights)})"
        axes.text(centre, 1.0, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=9)
        _draw_mean(axes, start, heights)
        ticks += [(start + offset, str(client)) for offset, (client, _) in enumerate(ordered)]
        start += len(heights) + 1
    axes.set_xticks([at for at, _ in ticks], [text for _, text in ticks])
    axes.tick_params(axis="x", labelsize=7, rotation=90 if len(ticks) > 25 else 0, length=2)
    name = "score" if metric is None else metric_name(metric.removesuffix("_clients"))
    axes.set(xlabel="client (line: mean)", ylabel=f"{name} of the last evaluation")
    in_unit = all(0 <= value <= 1 for values in scores.values() for value in values.values())
    if in_unit and (metric is None or is_share(metric)):
        axes.set_ylim(0, 1.03)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_mean(axes: Axes, start: int, heights: Sequence[float]) -> None:
    mean = sum(heights) / len(heights)
    axes.plot([start - 0.5, start + len(heights) - 0.5], [mean, mean], color="black", linewidth=1)
