"""The clients of an asynchronous schedule: who works on which model, and when answers arrive.

Virtual time goes from event to event. An event is the end of a flight (a client's answer arrives, or the client is
known to be lost) or the coming of a client that was away. For two clients that take 2 and 3 units::

    0   send_all: both get the first model
    2   next_event: client 0 has answered
        land, free: it waits for its next model
    2   send_all: client 0 gets the present model
    3   next_event: client 1 has answered
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.clock import VirtualClock
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import Task
from fl_lightning.parts.part import Part
from fl_lightning.seeding import Stream, numpy_generator

#: Stands in the place of a slot in the event that a client comes.
_COMES = -1


@dataclass(frozen=True)
class Flight:
    """A model that a client works on.

    Attributes:
        task: The client's task; its slot numbers the run's flights.
        model: The model that it received; flights share tensors.
        stamp: The server's counter then, from which staleness is counted.
        sent: The tick at which it was sent.
        due: The tick at which the answer arrives, or the client is known to be lost.
        lost: Whether the client does not answer.
    """

    task: Task
    model: Tensor
    stamp: int
    sent: int
    due: int
    lost: bool = False

    @property
    def turn(self) -> tuple[int, int, int]:
        """The place of the flight in the order of arrivals."""
        return self.due, self.task.client, self.task.slot


class ClientsAtWork(Part):
    """Sends models to clients, and lets virtual time go on to their answers.

    Args:
        clock: How long clients take, and when they are available.
        concurrency: Most clients that train at once; all if ``None``. When one finishes, the next is drawn uniformly
            from those that do not train.

    Attributes:
        now: The present tick.
        num_sent: Models that were sent, which number the flights.
        flights: What clients work on, by slot.
        events: A heap of the ends of flights and of comings: tick, client, slot.
        rng: Draws clients in the round under way.
    """

    sends_updates_alone = True
    runs_at = "server"
    records = (Flight,)

    def __init__(self, clock: VirtualClock, concurrency: int | None) -> None:
        self.clock = clock
        self.concurrency = concurrency

    @override
    def setup(self, federation: Federation) -> None:
        """Start at time 0, at which all clients get the first model, or as many as train at once."""
        everyone = list(range(federation.num_clients))
        self.now: int
        self.add_state("now", 0)
        self.num_sent: int
        self.add_state("num_sent", 0)
        #: Ticks that ended flights took.
        self.busy: int
        self.add_state("busy", 0)
        #: The tick at which an idle client is known to come.
        self.alarm: int
        self.add_state("alarm", -1)
        self.flights: dict[int, Flight]
        self.add_state("flights", {})
        self.events: list[tuple[int, int, int]]
        self.add_state("events", [])
        #: Clients that get the server's model next.
        self.outbox: list[int]
        self.add_state("outbox", everyone if self.concurrency is None else [])
        #: Clients to which nothing was sent.
        self.idle: list[int]
        self.add_state("idle", [] if self.concurrency is None else everyone)

    @override
    def loaded(self, name: str, value: Any) -> Any:
        """Return a state of a checkpoint, which holds lists in the place of tuples."""
        return [tuple(event) for event in value] if name == "events" else value

    @override
    def on_round_start(self, round_index: int) -> None:
        self.rng = numpy_generator(self.federation.seed, Stream.SAMPLING, round_index)
        self._repetitions: Counter[int] = Counter()
        #: The tasks for which the server sent its model in the round.
        self.sent_in_round: list[Task] = []

    @property
    def most_at_once(self) -> int:
        """Most clients that train at once."""
        return self.concurrency or self.federation.num_clients

    @property
    def utilization(self) -> float | None:
        """The share of virtual time in which clients work; ``None`` at its begin."""
        if not self.now:
            return None
        under_way = sum(self.now - flight.sent for flight in self.flights.values())
        return (self.busy + under_way) / (self.most_at_once * self.now)

    # ---- from event to event ----

    def next_event(self) -> Flight | None:
        """Go on to the next event; return the flight that ends, ``None`` if a client comes."""
        self.now, client, slot = heapq.heappop(self.events)
        if slot != _COMES:
            return self.flights[slot]
        if self.concurrency is None:
            self.outbox.append(client)
        return None

    def next_ends(self, most: int, known: Collection[int]) -> list[Task]:
        """Return the tasks whose answers come next, at most so many, without those of ``known`` slots."""
        tasks: list[Task] = []
        passed: list[tuple[int, int, int]] = []
        while self.events and len(tasks) < most:
            event = heapq.heappop(self.events)
            passed.append(event)
            _, _, slot = event
            flight = self.flights.get(slot)
            if flight is not None and not flight.lost and slot not in known:
                tasks.append(flight.task)
        for event in passed:
            heapq.heappush(self.events, event)
        return tasks

    def land(self, flight: Flight) -> None:
        """End a flight."""
        del self.flights[flight.task.slot]
        self.busy += flight.due - flight.sent

    def free(self, clients: Collection[int]) -> None:
        """Let clients train again: they get the next model, or are drawn again."""
        if self.concurrency is None:
            self.outbox.extend(clients)
        else:
            self.idle.extend(clients)

    # ---- sending ----

    def send_all(self, model: Tensor, stamp: int, num_waiting: int) -> None:
        """Send the server's model to the clients whose turn it is.

        Args:
            model: The server's, shape ``(size,)``.
            stamp: The counter from which its staleness is taken.
            num_waiting: Clients that wait for the server's move, and count as at work.
        """
        outbox = self.outbox
        self.outbox = []
        for client in outbox:
            self._send(client, model, stamp)
        if self.concurrency is None:
            return
        while self.idle and len(self.flights) + num_waiting < self.concurrency:
            if not self._draw(model, stamp):
                break

    def _draw(self, model: Tensor, stamp: int) -> bool:
        """Send the model to one of the idle clients that are there; return whether there is one."""
        idle = self.idle
        # Places in the list of those that are there: all, without windows.
        there = list(range(len(idle)))
        if self.clock.online:
            comings = [self.clock.next_online(client, self.now) for client in idle]
            there = [place for place, tick in enumerate(comings) if tick == self.now]
            if not there:
                self._wait_for(comings)
                return False
        place = there[int(self.rng.integers(len(there)))]
        client = idle[place]
        # The last one takes the place, so that nobody else moves.
        idle[place] = idle[-1]
        idle.pop()
        self._send(client, model, stamp)
        return True

    def _wait_for(self, comings: Sequence[int | None]) -> None:
        """Note when the first of the idle clients comes, as an event.

        Args:
            comings: The tick at which each comes; ``None`` for never.
        """
        later = [(tick, client) for tick, client in zip(comings, self.idle, strict=True) if tick is not None]
        if not later:
            return
        tick, client = min(later)
        if tick != self.alarm:
            self.alarm = tick
            heapq.heappush(self.events, (tick, client, _COMES))

    def _send(self, client: int, model: Tensor, stamp: int) -> None:
        """Send the server's model to a client, or wait until it comes."""
        clock = self.clock
        begins = clock.next_online(client, self.now)
        if begins is None:
            # It never comes back.
            return
        if begins > self.now:
            heapq.heappush(self.events, (begins, client, _COMES))
            return
        due = self.now + clock.duration(client, self.num_sent)
        is_lost = clock.is_lost(client, self.num_sent)
        leaves = clock.leaves_at(client, self.now)
        if due > leaves:
            due = leaves
            is_lost = True
        self.begin(client, model, stamp, due, is_lost)

    def begin(self, client: int, model: Tensor, stamp: int, due: int, is_lost: bool = False) -> None:
        """Let a client begin now to work on a model; the arguments are those of :class:`Flight`."""
        flight = Flight(self._task(client), model, stamp, self.now, due, is_lost)
        self.sent_in_round.append(flight.task)
        self.num_sent += 1
        self.flights[flight.task.slot] = flight
        heapq.heappush(self.events, flight.turn)

    def _task(self, client: int) -> Task:
        repetition = self._repetitions[client]
        self._repetitions[client] += 1
        return Task(self.num_sent, client, int(self.federation.sizes[client]), None, self.round, repetition)
