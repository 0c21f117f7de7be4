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
from fl_lightning.parts.schedules.asynchronous import Asynchronous
from fl_lightning.settings import check_arguments

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"used": "tab:blue", "rejected": "tab:orange", "invalid": "tab:red", "lost": "0.75"}
_AT_WORK = "0.9"  # the colour of work that has not ended
_MOST_CLIENTS = 60
_ROW = 0.17  # inches of a client in the picture, at least, so that the numbers of clients do not overlap
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
        TypeError: If ``path`` is no path.
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
        if not isinstance(callback.algorithm.schedule, Asynchronous):
            raise ValueError(
                f"Timeline records asynchronous algorithms, such as FedAsync; {type(callback).__name__} has rounds. "
                "Use VirtualTime(clock) for its virtual time."
            )

    def on_round_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the round's results."""
        schedule = aggregation_of(trainer, self).algorithm.schedule
        assert isinstance(schedule, Asynchronous)
        self.arrivals += schedule.report.arrivals
        clock = schedule.clock
        self.now = clock.time(schedule.now)
        self.at_work = [(each.task.client, clock.time(each.sent)) for each in schedule.flights.values()]
        self.values = {"fed/contributing_clients": len(self.contributions)}

    @rank_zero_only
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the figure."""
        if self.path is None or not self.arrivals:
            return
        path, number = self.path, 1
        while path.exists():
            path, number = self.path.with_stem(f"{self.path.stem}-{number}"), number + 1
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
        from matplotlib.ticker import MaxNLocator

        if not self.arrivals:
            raise RuntimeError("Nothing was recorded: plot a Timeline after `trainer.fit`.")
        now = max(self.now, *(record.arrived for record in self.arrivals))
        end = now if until is None else min(until, now)
        shown = [record for record in self.arrivals if record.arrived <= end]
        at_work = [(record.client, record.sent) for record in self.arrivals if record.arrived > end] + self.at_work
        at_work = [(client, sent) for client, sent in at_work if sent < end]
        seen = Counter([*(record.client for record in shown), *(client for client, _ in at_work)])
        clients = [client for client, _ in seen.most_common(_MOST_CLIENTS)]
        heights = max(3.6, _ROW * len(clients)), 2.4
        figure = Figure(figsize=(9.0, sum(heights)), layout="constrained")
        when, late, who = figure.subplot_mosaic([["when", "when"], ["late", "who"]], height_ratios=heights).values()
        rows = {client: row for row, client in enumerate(sorted(clients))}
        _draw_times(when, shown, rows)
        _draw_at_work(when, [(rows[client], sent) for client, sent in at_work if client in rows], end)
        when.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        histogram = self.staleness
        late.bar(list(histogram), list(histogram.values()), width=0.9, color="0.55")
        late.set(xlabel="staleness", ylabel="results")
        contributions = self.contributions
        who.bar(list(contributions), list(contributions.values()), width=0.9, color=_COLOURS["used"])
        who.set(xlabel="client", ylabel="results that were used")
        for axes in (late, who):
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(integer=True))
        for axes in (when, late, who):
            axes.spines[["top", "right"]].set_visible(False)
        return TimelinePlot(figure, (when, late, who))

    def state_dict(self) -> dict[str, Any]:
        """Return the records."""
        arrivals = [list(astuple(record)) for record in self.arrivals]
        return {"arrivals": arrivals, "at_work": self.at_work, "now": self.now}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the records of a checkpoint."""
        self.arrivals = [ArrivalRecord(*entry) for entry in state_dict["arrivals"]]
        self.at_work, self.now = [tuple(entry) for entry in state_dict["at_work"]], state_dict["now"]


def _draw_times(axes: Axes, shown: list[ArrivalRecord], rows: dict[int, int]) -> None:
    """Draw when each client trains, in its row, and a line where the server moves."""
    for outcome, colour in _COLOURS.items():
        records = [record for record in shown if record.outcome == outcome and record.client in rows]
        if records:
            axes.barh(
                [rows[record.client] for record in records],
                [record.arrived - record.sent for record in records],
                left=[record.sent for record in records],
                height=0.7,
                color=colour,
                edgecolor="white",
                linewidth=0.6,
                label=outcome,
            )
    for number, record in enumerate(record for record in shown if record.moved):
        axes.axvline(record.arrived, color="black", linewidth=0.4, label="server moves" if number == 0 else None)
    axes.set_yticks(list(rows.values()), [str(client) for client in rows])
    axes.invert_yaxis()
    axes.set(xlabel="virtual time", ylabel="client")


def _draw_at_work(axes: Axes, begun: list[tuple[int, float]], end: float) -> None:
    """Draw the work that has not ended: rows, and when it began."""
    if begun:
        rows, sent = zip(*begun, strict=True)
        widths = [end - each for each in sent]
        axes.barh(rows, widths, left=sent, height=0.7, color=_AT_WORK, hatch="///", edgecolor="0.7", label="at work")
