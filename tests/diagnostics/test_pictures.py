"""Pictures of what was recorded: records by hand, and all that is drawn of them."""

from __future__ import annotations

from typing import Any

from helpers.drawn import drawn
from matplotlib.axes import Axes

from fl_lightning.diagnostics import Contribution, Timeline
from fl_lightning.diagnostics.contribution import Contributed
from fl_lightning.parts.messages import ArrivalRecord


def things(axes: Axes) -> list[str]:
    """Return what is drawn, without the limits and ticks that matplotlib chooses."""
    return [line for line in drawn(axes) if not line.startswith(("from ", "ticks "))]


def test_a_timeline() -> None:
    timeline = Timeline()
    records: list[tuple[Any, ...]] = [
        (3, 0.0, 1.0, 0, "used", True),
        (0, 0.0, 2.0, 1, "rejected"),
        (3, 1.0, 2.5, 1, "invalid"),
        (5, 0.0, 3.0, -1, "lost"),
        (3, 2.5, 4.0, 0, "used", True),
        (0, 2.0, 9.0, 2, "used"),
    ]
    timeline.arrivals = [ArrivalRecord(*record) for record in records]
    timeline.at_work = [(7, 3.5), (3, 4.0)]
    timeline.now = 4.0
    figure, panels = timeline.plot(until=5.0)
    # Clients 0, 3, 5 and 7 in rows 0 to 3: what ended, the server's moves, and what has not ended at 5.
    assert things(panels[0]) == [
        "virtual time | client |  in 12",
        "without right top",
        "bar 0 0.65 1 0.7 #1f77b4 #ffffff 0.6",
        "bar 2.5 0.65 1.5 0.7 #1f77b4 #ffffff 0.6",
        "bar 0 -0.35 2 0.7 #ff7f0e #ffffff 0.6",
        "bar 1 0.65 1.5 0.7 #d62728 #ffffff 0.6",
        "bar 0 1.65 3 0.7 #bfbfbf #ffffff 0.6",
        "bar 2 -0.35 3 0.7 #e6e6e6 #b2b2b2 1 ///",
        "bar 3.5 2.65 1.5 0.7 #e6e6e6 #b2b2b2 1 ///",
        "bar 4 0.65 1 0.7 #e6e6e6 #b2b2b2 1 ///",
        "line 1 1 at 0 1 #000000 0.4 - None",
        "line 4 4 at 0 1 #000000 0.4 - None",
        "legend '' ['server moves', 'used', 'rejected', 'invalid', 'lost', 'at work'] at 1 1 2 without frame in 10 0.5",
    ]
    assert [tick.get_text() for tick in panels[0].get_yticklabels()] == ["0", "3", "5", "7"]
    assert panels[0].yaxis_inverted()
    # The lost result has no staleness. The server used two results of client 3 and one of client 0.
    assert things(panels[1]) == [
        "staleness | results |  in 12",
        "without right top",
        "bar -0.45 0 0.9 2 #8c8c8c no edge",
        "bar 0.55 0 0.9 2 #8c8c8c no edge",
        "bar 1.55 0 0.9 1 #8c8c8c no edge",
    ]
    assert things(panels[2]) == [
        "client | results that were used |  in 12",
        "without right top",
        "bar 2.55 0 0.9 2 #1f77b4 no edge",
        "bar -0.45 0 0.9 1 #1f77b4 no edge",
    ]
    figure.draw_without_rendering()
    ticks = [
        tick.get_text() for axes in panels[1:] for axis in (axes.xaxis, axes.yaxis) for tick in axis.get_ticklabels()
    ]
    assert ticks and not any("." in tick for tick in ticks)
    assert figure.get_size_inches().tolist() == [9.0, 3.6 + 2.4]
    assert repr(timeline.plot()) == "TimelinePlot(3 panels; `.savefig(path)` writes it)"
    # 61 clients, of whom the picture has those that worked most; 0.17 inches each
    timeline.arrivals += [ArrivalRecord(client, 0.0, 1.0, 0, "used") for client in range(70, 127)]
    figure, panels = timeline.plot()
    assert figure.get_size_inches().tolist() == [9.0, 0.17 * 60 + 2.4]
    assert len(panels[0].get_yticklabels()) == 60


def test_contributions() -> None:
    contribution = Contribution()
    contribution.records = [Contributed(*record) for record in [(0, 4, 0.5, 1.0), (0, 2, -1.0, 0.0), (2, 4, 0.25, 1.0)]]
    assert contribution.total == {2: -1.0, 4: 0.75}
    figure, axes = contribution.plot()
    assert things(axes) == [
        "round | contribution so far |  in 12",
        "without right top",
        "line 1 at -1 #1f77b4 1.5 - .",
        "line 1 3 at 0.5 0.75 #ff7f0e 1.5 - .",
        "line 0 1 at 0 0 #cccccc 0.8 - None",
        "legend 'client' ['2', '4'] at 1 1 2 without frame in 10 0.5",
    ]
    assert figure.get_size_inches().tolist() == [7.0, 4.0]
    assert repr(contribution.plot()) == "ContributionPlot(`.savefig(path)` writes it)"
