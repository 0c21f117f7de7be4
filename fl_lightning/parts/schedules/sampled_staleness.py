"""Staleness drawn at random, without a clock.

The n-th result of a fit, from 0, is made from the model that the server had after ``n - d`` results, with d drawn. With
a history of two models and a server that moves at each result::

    0   d = 0 (there is one model alone): from the first model; the server moves to version 1
    1   d = 1: from the first model, with staleness 1; the server moves to version 2
    2   d = 0: from version 2; ...

A round draws the clients and the models of all of its results first. So results whose models are there already can be
trained together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field

from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.clock import VirtualClock
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import Task
from fl_lightning.parts.schedules.asynchronous import Asynchronous, Stamp
from fl_lightning.parts.schedules.base import Play
from fl_lightning.parts.schedules.clients_at_work import Flight
from fl_lightning.parts.server import Server
from fl_lightning.settings import Count


@dataclass(eq=False, repr=False)
class SampledStaleness(Asynchronous):
    """Staleness drawn at random instead of arising from a clock (Xie et al.'s simulation; eq. (26)).

    Each result comes from a client drawn uniformly and from a model drawn uniformly among the last ``history`` ones,
    including the present one. A model is added to the history at each result, whether or not the server moved.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`Asynchronous`, without ``clock``, ``concurrency``, ``stamp`` and
    ``wait_for_flush``.

    Args:
        history: D, at least 1; staleness is 0 to D - 1.

    Raises:
        ValueError: If ``history`` is below 1, or another argument is out of its range.
    """

    clock: VirtualClock = field(default_factory=VirtualClock, init=False)
    history: Count
    _: KW_ONLY
    concurrency: Count | None = field(default=None, init=False)
    stamp: Stamp = field(default="upload", init=False)
    wait_for_flush: bool = field(default=False, init=False)
    repeats_clients = True

    @override
    def setup(self, federation: Federation) -> None:
        """Start with the first model alone."""
        super().setup(federation)
        #: The last models, by the number of results before them.
        self.models: dict[int, Tensor]
        self.add_state("models", {0: federation.model})

    @override
    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Draw the results' clients and models, then let them arrive."""
        #: The number of each result of the round, its client, and the number of its model.
        self._drawn: list[tuple[int, int, int]] = []
        for number in range(self.uploads, self.uploads + self.cohort_size):
            # A resumed run may have a longer history than there are models.
            known = number + 1 - min(self.models)
            staleness = int(self.clients.rng.integers(min(known, self.history)))
            client = int(self.clients.rng.integers(self.federation.num_clients))
            self._drawn.append((number, client, number - staleness))
        return (yield from super().play(tasks, server))

    @override
    def _next_arrival(self, server: Server) -> Flight:
        """Return the flight of the next result, having begun those whose model is there."""
        self.models[self.uploads] = server.model
        self.models.pop(self.uploads - self.history, None)
        to_come: list[tuple[int, int, int]] = []
        for number, client, model in self._drawn:
            if model > self.uploads:
                to_come.append((number, client, model))
                continue
            # A result's place in the order stands for the time at which it is due.
            self.clients.begin(client, self.models[model], stamp=model, due=number + 1)
        self._drawn = to_come
        # Every result's model is there by its turn.
        flight = self.clients.next_event()
        assert flight is not None
        return flight

    @override
    def _free(self, clients: Collection[int]) -> None:
        """Do nothing: the next clients are drawn."""

    @override
    def _times(self) -> dict[str, float]:
        return {}
