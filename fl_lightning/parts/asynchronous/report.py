"""Reports of the results that arrived in a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fl_lightning.parts.traffic import RoundReport

Outcome = Literal["used", "rejected", "invalid", "lost"]


@dataclass(frozen=True)
class ArrivalRecord:
    """What happened to one client's work.

    Attributes:
        client: The client.
        sent: Virtual time at which it received its model.
        arrived: Virtual time at which its result arrived, or it was known to be lost.
        staleness: d, by the server's counter; -1 if it was lost.
        outcome: ``"used"``; ``"rejected"``: too stale, or a second one in the buffer; ``"invalid"``: NaN or infinite;
            ``"lost"``: dropped out.
        moved: Whether the server moved at once.
    """

    client: int
    sent: float
    arrived: float
    staleness: int
    outcome: Outcome
    moved: bool = False


@dataclass
class ArrivalReport(RoundReport):
    """What happened to a round's results, in the order of their arrival."""

    arrivals: list[ArrivalRecord] = field(default_factory=list)
