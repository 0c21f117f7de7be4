"""Who trains when, when the server moves, and how stale results are."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import lightning.pytorch as pl
from lightning.pytorch.utilities import rank_zero_only

from fl_lightning.diagnostics.observer import RoundObserver, aggregation_of
from fl_lightning.notebook import Drawn
from fl_lightning.parts.messages import ArrivalRecord
from fl_lightning.settings import check_arguments

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"used": "tab:blue", "rejected": "tab:orange", "invalid": "tab:red", "lost": "0.75"}
#: The colour of work that has not ended.
_AT_WORK = "0.9"
_MOST_CLIENTS = 60
#: Inches of a client's row in the picture: as many as keep the numbers of clients apart.
_ROW = 0.17
_PICTURES = (".png", ".pdf", ".svg")


class _TimelineParts(NamedTuple):
    figure: Figure
    axes: tuple[Axes, Axes, Axes]


class TimelinePlot(_TimelineParts, Drawn):
    """The picture of a timeline, which a notebook shows; it unpacks as ``figure, axes``.

    Attributes:
        figure: The figure; it is not pyplot's. ``savefig(path)`` writes it.
        axes: Its axes: who trains when, staleness, contributions.
    """

    def __repr__(self) -> str:
        return "TimelinePlot(3 panels; `.savefig(path)` writes it)"


class Timeline(RoundObserver):
    """Records every result of an asynchronous algorithm.

    ``fed/contributing_clients`` is logged: how many clients the server has used results of so far.

    Args:
        path: File of the picture, ``.png``, ``.pdf`` or ``.svg``, written when the fit ends; an older one is not
            overwritten, the new one gets a number. None is written if ``None``.

    Raises:
        TypeError: If ``path`` is not a path.
        ValueError: If it has another ending.

    Attributes:
        arrivals: What became of each result, in the order of arrival.
        at_work: The clients that work when the last round ends, and when each received its model.
        now: The virtual time then.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        check_arguments(self, {"path": path})
        self.path = None if path is None else Path(path)
        if self.path is not None and self.path.suffix.lower() not in _PICTURES:
            raise ValueError(
                f"`path` must end in .png, .pdf or .svg, got {path!r}. It is the picture of the timeline; the results "
                "are in `timeline.arrivals`."
            )
        self.reset()

    def reset(self) -> None:
        """Start without records."""
        self.arrivals: list[ArrivalRecord] = []
        self.at_work: list[tuple[int, float]] = []
        self.now = 0.0

    @property
    def contributions(self) -> Counter[int]:
        """How many results of each client the server used."""
        return Counter(record.client for record in self.arrivals if record.outcome == "used")

    @property
    def staleness(self) -> Counter[int]:
        """How many results had each staleness: the histogram."""
        return Counter(record.staleness for record in self.arrivals if record.outcome != "lost")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Check that there is a timeline to record.

        Raises:
            ValueError: If the algorithm is not asynchronous.
        """
        callback = aggregation_of(trainer, self)
        if not callback.algorithm.schedule.has_virtual_time:
            raise ValueError(
                f"Timeline records asynchronous algorithms, such as FedAsync; {type(callback).__name__} has rounds. "
                "Use VirtualTime(clock) for its virtual time."
            )

    def on_round_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the round's results."""
        algorithm = aggregation_of(trainer, self).algorithm
        schedule = algorithm.schedule
        self.arrivals += algorithm.report.arrivals
        self.now = schedule.virtual_time
        self.at_work = list(schedule.at_work())
        self.values = {"fed/contributing_clients": len(self.contributions)}

    @rank_zero_only
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the figure."""
        if self.path is None or not self.arrivals:
            return
        path = self.path
        number = 0
        while path.exists():
            number += 1
            path = self.path.with_stem(f"{self.path.stem}-{number}")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.plot().savefig(path, dpi=120)

    def plot(self, until: float | None = None) -> TimelinePlot:
        """Draw who trains when, with a line where the server moves; the histogram of staleness; and contributions.

        Args:
            until: Virtual time up to which the first panel is drawn; all of it if ``None``.

        Returns:
            The picture; ``savefig(path)`` writes it, and a notebook shows it.

        Raises:
            RuntimeError: If nothing was recorded.
        """
        from matplotlib.figure import Figure

        if not self.arrivals:
            raise RuntimeError("Nothing was recorded: plot a Timeline after `trainer.fit`.")
        end = max(self.now, *(record.arrived for record in self.arrivals))
        if until is not None:
            end = min(until, end)
        ended = [record for record in self.arrivals if record.arrived <= end]
        at_work = [(record.client, record.sent) for record in self.arrivals if record.arrived > end]
        at_work += self.at_work
        begun = [(client, sent) for client, sent in at_work if sent < end]

        seen = Counter(record.client for record in ended)
        seen.update(client for client, _ in begun)
        clients = [client for client, _ in seen.most_common(_MOST_CLIENTS)]
        row_of = {client: row for row, client in enumerate(sorted(clients))}
        ended = [record for record in ended if record.client in row_of]
        begun = [(client, sent) for client, sent in begun if client in row_of]

        height_of_times = max(3.6, _ROW * len(clients))
        height_of_counts = 2.4
        figure = Figure(figsize=(9.0, height_of_times + height_of_counts), layout="constrained")
        panels = figure.subplot_mosaic(
            [["times", "times"], ["staleness", "contributions"]],
            height_ratios=(height_of_times, height_of_counts),
        )
        times = panels["times"]
        _draw_times(times, ended, row_of)
        _draw_moves(times, [record.arrived for record in self.arrivals if record.moved and record.arrived <= end])
        _draw_at_work(times, begun, row_of, end)
        times.set_yticks(list(row_of.values()), [str(client) for client in row_of])
        times.invert_yaxis()
        times.set(xlabel="virtual time", ylabel="client")
        times.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        _draw_counts(panels["staleness"], self.staleness, "0.55")
        panels["staleness"].set(xlabel="staleness", ylabel="results")
        _draw_counts(panels["contributions"], self.contributions, _COLOURS["used"])
        panels["contributions"].set(xlabel="client", ylabel="results that were used")
        for axes in panels.values():
            axes.spines[["top", "right"]].set_visible(False)
        return TimelinePlot(figure, (times, panels["staleness"], panels["contributions"]))

    def state_dict(self) -> dict[str, Any]:
        """Return the records."""
        arrivals = [list(astuple(record)) for record in self.arrivals]
        return {"arrivals": arrivals, "at_work": self.at_work, "now": self.now}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the records of a checkpoint."""
        self.arrivals = [ArrivalRecord(*entry) for entry in state_dict["arrivals"]]
        self.at_work = [(client, sent) for client, sent in state_dict["at_work"]]
        self.now = state_dict["now"]


def _draw_times(axes: Axes, ended: list[ArrivalRecord], row_of: dict[int, int]) -> None:
    """Draw when each client trained, in its row."""
    for outcome, colour in _COLOURS.items():
        records = [record for record in ended if record.outcome == outcome]
        if records:
            axes.barh(
                [row_of[record.client] for record in records],
                [record.arrived - record.sent for record in records],
                left=[record.sent for record in records],
                height=0.7,
                color=colour,
                edgecolor="white",
                linewidth=0.6,
                label=outcome,
            )


def _draw_moves(axes: Axes, moves: list[float]) -> None:
    """Draw a line at each time at which the server moves."""
    # Only the first line has a label, so that the legend has one entry.
    label = "server moves"
    for time in moves:
        axes.axvline(time, color="black", linewidth=0.4, label=label)
        label = "_"


def _draw_at_work(axes: Axes, begun: list[tuple[int, float]], row_of: dict[int, int], end: float) -> None:
    """Draw the work that has not ended: clients, and when each began."""
    if not begun:
        return
    axes.barh(
        [row_of[client] for client, _ in begun],
        [end - sent for _, sent in begun],
        left=[sent for _, sent in begun],
        height=0.7,
        color=_AT_WORK,
        hatch="///",
        edgecolor="0.7",
        label="at work",
    )


def _draw_counts(axes: Axes, counts: Counter[int], colour: str) -> None:
    """Draw a bar for each number that was counted."""
    from matplotlib.ticker import MaxNLocator

    axes.bar(list(counts), list(counts.values()), width=0.9, color=colour)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
