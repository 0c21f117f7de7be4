"""Random numbers that parts of a user's own draw from the global generators."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum

from fl_lightning.parts.federation import Federation
from fl_lightning.parts.part import Part
from fl_lightning.seeding import Stream, seeded


class Moment(IntEnum):
    """When parts are called, for the seeds of what they draw."""

    ROUND_START = 0
    START = 1
    CORRECTION = 2
    UPLOAD = 3
    UPDATE = 4
    MOVE = 5
    COHORT = 6
    ROUND_END = 7
    FIT_START = 8


_ASKED = {
    Moment.START: {"schedule", "exchange"},
    Moment.CORRECTION: {"objective"},
    Moment.UPLOAD: {"objective", "exchange"},
    Moment.UPDATE: {"aggregation"},
    Moment.MOVE: {"aggregation", "exchange", "server_optimizer"},
    Moment.COHORT: {"sampler"},
}


class OwnDraws:
    """Seeds the global generators while parts of a user's own work; those of the library have generators of their own.

    So what they draw depends neither on the executor nor on the number of processes, and a resumed run draws the same.
    """

    def __init__(self) -> None:
        self._moments = frozenset({Moment.FIT_START})

    def look_at(self, parts: Mapping[str, Part]) -> None:
        """Find out at which moments parts of a user's own are called."""
        own = {name for name, part in parts.items() if not all(each.is_of_library for each in part.with_held_parts)}
        everyone = set(parts)
        asked = {moment for moment in Moment if own & _ASKED.get(moment, everyone)}
        self._moments = frozenset({*asked, Moment.FIT_START})  # then those of the library call users' functions, too

    def at(self, federation: Federation, moment: Moment, *numbers: int) -> AbstractContextManager[None]:
        """Return the context in which parts are called.

        Args:
            federation: The run.
            moment: Why they are called.
            *numbers: What a resumed run and all processes have, too, such as the round and the client.
        """
        if moment not in self._moments:
            return nullcontext()
        return seeded(federation.seed, Stream.PARTS, moment, *numbers, device=federation.model.device)
