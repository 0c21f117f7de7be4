"""Pictures of what was recorded: records by hand, and all that is drawn of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers.drawn import drawn
from helpers.written import assert_as_in
from matplotlib.image import imread

from fl_lightning.diagnostics import Contribution, Timeline
from fl_lightning.diagnostics.contribution import Contributed
from fl_lightning.parts.messages import ArrivalRecord

HERE = Path(__file__).parent


def test_a_timeline(tmp_path: Path) -> None:
    timeline = Timeline(path := tmp_path / "new" / "folder" / "times.PNG")
    timeline.on_train_end(None, None)  # type: ignore[arg-type]
    assert not path.exists()
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
    # The lost result has no staleness. The server used two results of client 3 and one of client 0.
    figure.draw_without_rendering()
    assert_as_in(HERE / "timeline.txt", drawn(figure), tmp_path)
    assert panels[0].yaxis_inverted()
    ticks = [
        tick.get_text() for axes in panels[1:] for axis in (axes.xaxis, axes.yaxis) for tick in axis.get_ticklabels()
    ]
    assert ticks and not any("." in tick for tick in ticks)
    assert repr(timeline.plot()) == "TimelinePlot(3 panels; `.savefig(path)` writes it)"
    for _ in range(3):
        timeline.on_train_end(None, None)  # type: ignore[arg-type]
    assert sorted(each.name for each in path.parent.iterdir()) == ["times-1.PNG", "times-2.PNG", "times.PNG"]
    # 9 inches of 120 points
    assert imread(path).shape[1] == 9 * 120
    # 62 clients, of whom the picture has those that worked most; 0.17 inches each
    timeline.arrivals += [ArrivalRecord(client, 0.0, 1.0, 0, "used") for client in range(70, 128)]
    figure, panels = timeline.plot(until=99.0)
    assert panels[0].get_xlim()[1] < 10
    assert figure.get_size_inches().tolist() == [9.0, 0.17 * 60 + 2.4]
    assert len(panels[0].get_yticklabels()) == 60


def test_contributions(tmp_path: Path) -> None:
    contribution = Contribution()
    contribution.records = [Contributed(*record) for record in [(0, 4, 0.5, 1.0), (0, 2, -1.0, 0.0), (2, 4, 0.25, 1.0)]]
    assert contribution.total == {2: -1.0, 4: 0.75}
    figure, _ = contribution.plot()
    assert_as_in(HERE / "contributions.txt", drawn(figure), tmp_path)
    assert repr(contribution.plot()) == "ContributionPlot(`.savefig(path)` writes it)"
