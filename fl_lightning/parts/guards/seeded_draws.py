"""Random numbers that parts of a user's own draw from the global generators."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum

from fl_lightning.parts.federation import Federation
from fl_lightning.parts.part import Part
from fl_lightning.parts.participation import Participation
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
    SCORES_ASKED = 9
    FIRST_SCORE = 10
    SCORES_TAKEN = 11
    SCORE = 12
    RECEIVE = 13
    PUBLISH = 14
    PUBLISHED = 15
    VALUES = 16
    ARRIVAL = 17
    ABORT = 18
    TASKS = 19
    TAKE = 20


_ASKED = {
    Moment.START: {"schedule", "exchange"},
    Moment.CORRECTION: {"objective"},
    Moment.UPLOAD: {"objective", "exchange"},
    Moment.UPDATE: {"aggregation"},
    Moment.MOVE: {"aggregation", "exchange", "server_optimizer"},
    Moment.COHORT: {"sampler", "schedule", "participation"},
    Moment.SCORES_ASKED: {"sampler"},
    Moment.FIRST_SCORE: {"sampler"},
    Moment.SCORES_TAKEN: {"sampler"},
    Moment.SCORE: {"sampler"},
    Moment.RECEIVE: {"schedule"},
    Moment.PUBLISH: {"schedule"},
    Moment.PUBLISHED: {"exchange"},
    Moment.ARRIVAL: {"schedule"},
    Moment.TASKS: {"schedule"},
    Moment.TAKE: {"schedule"},
}


class OwnDraws:
    """Seeds the global generators while parts of a user's own work; those of the library have generators of their own.

    So what they draw depends neither on the executor nor on the number of processes, and a resumed run draws the same.
    """

    def __init__(self) -> None:
        self._moments = frozenset({Moment.FIT_START})

    def look_at(self, parts: Mapping[str, Part], participation: Participation) -> None:
        """Find out at which moments parts, or functions, of a user's own are called."""
        own = {name for name, part in parts.items() if any(each.may_draw for each in part.with_held_parts)}
        everyone = set(parts)
        if participation.may_draw:
            own.add("participation")
        asked = {moment for moment in Moment if own & _ASKED.get(moment, everyone)}
        self._moments = frozenset({*asked, Moment.FIT_START})  # then those of the library call users' functions, too

    def at(self, federation: Federation | None, moment: Moment, *numbers: int) -> AbstractContextManager[None]:
        """Return the context in which parts are called.

        Args:
            federation: The run; ``None`` before it has begun.
            moment: Why they are called.
            *numbers: What a resumed run and all processes have, too, such as the round and the client.
        """
        if federation is None or moment not in self._moments:
            return nullcontext()
        return seeded(federation.seed, Stream.PARTS, moment, *numbers, device=federation.model.device)
