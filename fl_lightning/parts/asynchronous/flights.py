"""Models that clients have received and not yet answered, in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from fl_lightning.parts.messages import ClientResult, Task

ARRIVAL, LOSS, COMING = 0, 1, 2


class Event(NamedTuple):
    """An arrival, a loss, or a client that comes; events are ordered by tick, then by client."""

    tick: int
    client: int
    slot: int  # the flight's, -1 where a client comes
    kind: int


@dataclass(frozen=True)
class Flight:
    """A model that a client works on.

    Attributes:
        task: The client's task; its slot numbers the run's flights.
        version: How often the server had moved when it sent the model.
        stamp: The server's counter then, from which staleness is counted.
        sent: The tick at which it was sent.
        due: The tick at which the answer arrives, or the client is known to be lost.
    """

    task: Task
    version: int
    stamp: int
    sent: int
    due: int


@dataclass
class Simulation:
    """The state of the simulated time: all that is under way, and the models that it started from.

    Attributes:
        now: The present tick.
        number: How many models were sent so far.
        uploads: How many results have arrived.
        broadcasts: How often the server sent its model to all clients.
        flights: Models that clients work on, by slot.
        models: The models that flights started from, by version, each shared by its flights.
        users: How many flights share each.
        results: Results that were trained ahead of their arrival, by slot, as they left the exchange; ``None`` for a
            client that handed back NaN or infinite values.
        buffer: Results that arrived since the server's last move.
        events: Arrivals, losses and comings that are due, a heap.
        untrained: (due, client, slot) of arrivals that are not trained yet, a heap.
        outbox: Clients that are to get the server's model next.
        waiting: Clients that wait until the server gets the buffer.
        idle: Clients that nothing was sent to.
        rounds: How many flights that began in a round are yet to be trained, by round.
        busy: Ticks that ended flights took, summed over clients.
        sent_sum: The ticks at which the present flights were sent, summed.
        alarm: The tick at which an idle client is known to come.
    """

    now: int = 0
    number: int = 0
    uploads: int = 0
    broadcasts: int = 0
    flights: dict[int, Flight] = field(default_factory=dict)
    models: dict[int, Tensor] = field(default_factory=dict)
    users: dict[int, int] = field(default_factory=dict)
    results: dict[int, ClientResult | None] = field(default_factory=dict)
    buffer: list[ClientResult] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    untrained: list[tuple[int, int, int]] = field(default_factory=list)
    outbox: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    rounds: dict[int, int] = field(default_factory=dict)
    busy: int = 0
    sent_sum: int = 0
    alarm: int = -1

    def copy(self) -> Simulation:
        """Return a copy that later changes of this one leave as it is; flights and tensors are shared."""
        values: dict[str, Any] = {name: v if isinstance(v, int) else v.copy() for name, v in vars(self).items()}
        return Simulation(**values)

    # ---- flights ----

    def send(self, flight: Flight, model: Tensor, kind: int) -> None:
        """Add a flight from ``model``, which is not copied."""
        slot, client = flight.task.slot, flight.task.client
        self.number += 1
        self.flights[slot] = flight
        self.models[flight.version] = model
        self.users[flight.version] = self.users.get(flight.version, 0) + 1
        self.sent_sum += flight.sent
        heapq.heappush(self.events, Event(flight.due, client, slot, kind))
        if kind == ARRIVAL:
            heapq.heappush(self.untrained, (flight.due, client, slot))
            self.rounds[flight.task.round] = self.rounds.get(flight.task.round, 0) + 1

    def announce(self, client: int, tick: int) -> None:
        """Note that a client comes at a tick."""
        heapq.heappush(self.events, Event(tick, client, -1, COMING))

    def set_alarm(self, client: int, tick: int) -> None:
        """Note that an idle client comes at a tick, unless that tick is noted already."""
        if self.alarm != tick:
            self.alarm = tick
            self.announce(client, tick)

    def next_event(self) -> Event | None:
        """Move on to the next event and return it; ``None`` if nothing is under way."""
        if not self.events:
            return None
        event = heapq.heappop(self.events)
        self.now = event.tick
        return event

    def complete(self, slot: int) -> Flight:
        """End a flight and return it; the model that it started from is forgotten if no other did."""
        flight = self.flights.pop(slot)
        self.users[flight.version] -= 1
        if not self.users[flight.version]:
            del self.users[flight.version], self.models[flight.version]
        self.busy += flight.due - flight.sent
        self.sent_sum -= flight.sent
        return flight

    def next_untrained(self, limit: int) -> Iterator[Flight]:
        """Yield at most ``limit`` untrained flights, those that arrive first, and regard them as trained."""
        for _ in range(min(limit, len(self.untrained))):
            flight = self.flights[heapq.heappop(self.untrained)[2]]
            self.rounds[flight.task.round] -= 1
            if not self.rounds[flight.task.round]:
                del self.rounds[flight.task.round]
            yield flight

    @property
    def worked(self) -> int:
        """Ticks that clients have worked so far, summed over clients."""
        return self.busy + len(self.flights) * self.now - self.sent_sum

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Return everything as numbers, lists, dicts and tensors."""
        results = {slot: None if result is None else result.state_dict() for slot, result in self.results.items()}
        flights = [[*astuple(f.task), f.version, f.stamp, f.sent, f.due] for f in self.flights.values()]
        buffer = [result.state_dict() for result in self.buffer]
        return {**vars(self), "flights": flights, "results": results, "buffer": buffer}

    @classmethod
    def from_state(cls, state: dict[str, Any], like: Tensor) -> Simulation:
        """Return the state of a checkpoint, its tensors as ``like``."""

        def result_of(entry: dict[str, Any]) -> ClientResult:
            models = {name: entry[name].to(like) for name in ("start", "vector")}
            return ClientResult.from_state(entry, **models)

        flights = [Flight(Task(*entry[:-4]), *entry[-4:]) for entry in state["flights"]]
        restored: dict[str, Any] = {
            name: value if isinstance(value, int) else value.copy() for name, value in state.items()
        }
        restored |= {
            "flights": {flight.task.slot: flight for flight in flights},
            "events": [Event(*entry) for entry in state["events"]],
            "untrained": [tuple(entry) for entry in state["untrained"]],
            "models": {key: tensor.to(like) for key, tensor in state["models"].items()},
            "results": {slot: entry and result_of(entry) for slot, entry in state["results"].items()},
            "buffer": [result_of(entry) for entry in state["buffer"]],
        }
        return cls(**restored)
