"""The asynchronous schedule: which client works on which version of the model, and when its result arrives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fl_lightning.arguments import check_bool, check_choice, check_count, check_instance, check_positive, plain
from fl_lightning.parts.asynchronous.clock import VirtualClock
from fl_lightning.parts.asynchronous.flights import ARRIVAL, LOSS, Flight, Simulation
from fl_lightning.parts.federation import ClientResult, Federation, Task
from fl_lightning.parts.schedules import BaseSchedule
from fl_lightning.parts.server import Server
from fl_lightning.representation import who_train
from fl_lightning.super_calls import is_of_library

_MOST_AHEAD = 64
_KEPT_AHEAD = 4

Stamp = Literal["version", "upload", "upload-literal"]


class Asynchronous(BaseSchedule):
    """Clients work at their own pace in virtual time, and the server moves when its buffer of results is full.

    Args:
        clock: How long clients take, and when they are available.
        buffer_size: Results that make the server move; 1 lets it move at each.
        concurrency: Most clients that train at once; all if ``None``. When one finishes, the next is drawn uniformly
            from those that do not train.
        stamp: What staleness counts. ``"version"``: the server's moves since the client received its model.
            ``"upload"``: the results that arrived since then. ``"upload-literal"``: one more for a client that answered
            before, as if the server sent its counter before it increases it.
        wait_for_flush: Whether a client whose result is in the buffer waits until the server gets the full buffer, also
            if it stays then; otherwise the client gets the server's present model at once.
        flush_rounds: Whether the server also moves at a round's end, with the results that the buffer holds.
        max_staleness: Results with a larger staleness are rejected; ``None`` accepts all.
        once_per_buffer: Whether a client's second result in a buffer is rejected.
        broadcast_threshold: The server sends its model to all clients when one move changes its parameters by more than
            this share, ``|x_t - x_{t-1}| / |x_{t-1}|``. Clients that train are not interrupted, so this adds traffic
            and changes no result.
        lookahead: How many clients are trained together, before the results are due; as many as arrive in a round, but
            at most 64, if ``None``. At most four times as many results are kept. The server's model does not depend on
            it; clients' personal values and privacy ledgers count a training when it is made.

    Raises:
        ValueError: If an argument is out of its range; when the fit begins, if there are fewer clients than train at
            once, or the buffer could never be full.
    """

    #: Whether a client may train on several models at once.
    repeats_clients = False
    saves_results = True

    def __init__(
        self,
        clock: VirtualClock,
        *,
        buffer_size: int = 1,
        concurrency: int | None = None,
        stamp: Stamp = "version",
        wait_for_flush: bool = False,
        flush_rounds: bool = False,
        max_staleness: int | None = None,
        once_per_buffer: bool = False,
        broadcast_threshold: float | None = None,
        lookahead: int | None = None,
    ) -> None:
        check_instance("clock", clock, VirtualClock)
        check_count("buffer_size", buffer_size, hint="It is the number of results that make the server move.")
        check_count("concurrency", 1 if concurrency is None else concurrency)
        check_choice("stamp", stamp, ("version", "upload", "upload-literal"))
        check_count("max_staleness", 0 if max_staleness is None else max_staleness, minimum=0)
        if broadcast_threshold is not None:
            check_positive("broadcast_threshold", broadcast_threshold)
        check_count("lookahead", 1 if lookahead is None else lookahead)
        check_bool("wait_for_flush", wait_for_flush)
        check_bool("flush_rounds", flush_rounds)
        check_bool("once_per_buffer", once_per_buffer)
        self.buffer_size, self.max_staleness, self.once_per_buffer = buffer_size, plain(max_staleness), once_per_buffer
        self.broadcast_threshold = plain(broadcast_threshold)
        self.clock, self.concurrency, self.stamp = clock, plain(concurrency), stamp
        self.wait_for_flush, self.flush_rounds, self.lookahead = wait_for_flush, flush_rounds, plain(lookahead)
        self.uploads = 0
        self.simulation = Simulation()
        self.lost: list[Flight] = []
        self._ahead: dict[int, Tensor] = {}
        self._model = torch.empty(0)

    def on_fit_start(self, federation: Federation) -> None:
        """Start at time 0, at which all clients get the first model, or as many as train at once."""
        self.clock.on_fit_start(federation)
        number = federation.num_clients
        if self.concurrency is not None and self.concurrency > number:
            raise ValueError(
                f"`concurrency` is {self.concurrency}, but only {who_train(number)}. Give at most {number}, or None "
                "for all of them."
            )
        self.uploads, self.simulation, self._model = 0, Simulation(), federation.model
        self._sizes = federation.sizes
        clients = list(range(number))
        self.simulation.outbox, self.simulation.idle = (clients, []) if self.concurrency is None else ([], clients)
        size, most = self.buffer_size, self.most_at_once
        if (self.wait_for_flush or self.once_per_buffer) and size > most:
            raise ValueError(
                f"`buffer_size` is {size}, but only {who_train(most)} at once, and none "
                "adds a second result before the buffer is full, so it would never be full. "
                f"Give at most {most}, or let clients go on at once."
            )

    @property
    def may_draw(self) -> bool:
        """Whether a class, or the clock's, is a user's own."""
        return super().may_draw or not is_of_library(type(self.clock))

    @property
    def repeats_in_buffer(self) -> bool:  # type: ignore[override]
        """Whether the buffer may hold several results of one client."""
        waits = self.wait_for_flush and not self.repeats_clients
        return self.buffer_size > 1 and not (self.once_per_buffer or waits)

    @property
    def most_at_once(self) -> int:
        """Most clients that train at once."""
        return self.concurrency or len(self._sizes)

    @property
    def in_cycle(self) -> bool:
        """Whether clients work on models of this fit."""
        return bool(self.simulation.flights)

    # ---- a round ----

    def enter(self, round_index: int, rng: np.random.Generator, arrivals: int) -> None:
        """Begin a round of so many arrivals."""
        self._round, self._rng = round_index, rng
        self._sent_in_round: Counter[int] = Counter()
        self.lost = []

    def next_arrival(self, server: Server) -> int:
        """Go on to the next result, sending models to clients as their turn comes; return its slot.

        Raises:
            RuntimeError: If no client works and none will come.
        """
        simulation = self.simulation
        while True:
            self._send_all(server)
            event = simulation.next_event()
            if event is None:
                raise RuntimeError(
                    f"No client is at work any more at virtual time {self.clock.time(simulation.now):g} and none comes "
                    f"back: {len(simulation.waiting)} wait for the buffer, which has {len(simulation.buffer)} of "
                    f"{self.buffer_size} results. Give `online` longer windows, or a smaller `buffer_size`."
                )
            if event.kind == ARRIVAL:
                return event.slot
            if event.kind == LOSS:
                flight, _ = simulation.complete(event.slot)
                self.lost.append(flight)
                self.free([flight.task.client])
            elif self.concurrency is None:
                simulation.outbox.append(event.client)

    def free(self, clients: Collection[int]) -> None:
        """Let clients train again: they get the next model, or are drawn again."""
        (self.simulation.outbox if self.concurrency is None else self.simulation.idle).extend(clients)

    def counter(self, server: Server) -> int:
        """Return the server's counter, from which staleness is taken."""
        return server.aggregations if self.stamp == "version" else self.uploads

    def together(self, arrivals: int) -> int:
        """Return how many clients are trained together in a round of so many arrivals."""
        return self.lookahead or min(arrivals, _MOST_AHEAD)

    def to_train(self, arrivals: int) -> list[Task]:
        """Return the tasks whose results are due next and are not there yet."""
        together = self.together(arrivals)
        # a client that has just begun may be due before those that were trained ahead: these must not pile up
        space = max(1, _KEPT_AHEAD * together - len(self.simulation.results))
        flights = list(self.simulation.next_untrained(min(together, space)))
        self._ahead = {flight.task.slot: self.simulation.models[flight.version] for flight in flights}
        return [flight.task for flight in flights]

    def start(self, slot: int, server: Server) -> Tensor:
        """Return the model that the client received."""
        return self._ahead[slot]

    def receive(self, result: ClientResult) -> None:
        """Keep a result until it is due."""
        self.simulation.results[result.task.slot] = result

    def arrive(self, slot: int, server: Server) -> tuple[Flight, ClientResult]:
        """End a flight; return it and its result with its staleness."""
        flight, _ = self.simulation.complete(slot)
        counter = self.counter(server)
        result = replace(self.simulation.results.pop(slot), staleness=counter - flight.stamp, counter=counter)
        return flight, result

    def admits(self, result: ClientResult) -> bool:
        """Return whether a result may enter the buffer."""
        if self.max_staleness is not None and result.staleness > self.max_staleness:
            return False
        return not self.once_per_buffer or all(r.task.client != result.task.client for r in self.simulation.buffer)

    @property
    def is_full(self) -> bool:
        """Whether the buffer holds as many results as make the server move."""
        return len(self.simulation.buffer) >= self.buffer_size

    def empty_buffer(self) -> list[ClientResult]:
        """Return the results in the buffer, in the order of arrival, and forget them."""
        results, self.simulation.buffer = self.simulation.buffer, []
        return results

    # ---- sending ----

    def _send_all(self, server: Server) -> None:
        """Send the server's model to the clients whose turn it is."""
        outbox, self.simulation.outbox = self.simulation.outbox, []
        for client in outbox:
            self._send(client, server)
        while self.concurrency is not None and self.simulation.idle and self._places_left and self._draw(server):
            pass

    @property
    def _places_left(self) -> int:
        return self.most_at_once - len(self.simulation.flights) - len(self.simulation.waiting)

    def _draw(self, server: Server) -> bool:
        """Send the model to one of the idle clients that are there; return whether there is one."""
        idle, now = self.simulation.idle, self.simulation.now
        if self.clock.online:
            comings = [self.clock.next_online(client, now) for client in idle]
            there = [place for place, tick in enumerate(comings) if tick == now]
            if not there:
                later = [(tick, client) for tick, client in zip(comings, idle, strict=True) if tick is not None]
                if later:
                    tick, client = min(later)
                    self.simulation.set_alarm(client, tick)
                return False
            place = there[int(self._rng.integers(len(there)))]
        else:
            place = int(self._rng.integers(len(idle)))
        idle[place], idle[-1] = idle[-1], idle[place]
        self._send(idle.pop(), server)
        return True

    def _send(self, client: int, server: Server) -> None:
        """Send the server's model to a client, or wait until it comes."""
        simulation, clock = self.simulation, self.clock
        begins = clock.next_online(client, simulation.now)
        if begins is None:
            return  # it never comes back
        if begins > simulation.now:
            simulation.announce(client, begins)
            return
        number, task = simulation.number, self._task(client)
        due, leaves = simulation.now + clock.duration(client, number), clock.leaves_at(client, simulation.now)
        lost = clock.is_lost(client, number)
        if leaves is not None and due > leaves:
            due, lost = leaves, True
        stamp = max(0, self.counter(server) - (self.stamp == "upload-literal"))
        flight = Flight(task, server.aggregations, stamp, simulation.now, due)
        simulation.send(flight, server.model, LOSS if lost else ARRIVAL)

    def _task(self, client: int) -> Task:
        repetition = self._sent_in_round[client]
        self._sent_in_round[client] += 1
        return Task(self.simulation.number, client, int(self._sizes[client]), None, self._round, repetition)

    # ---- accounts ----

    def values(self) -> dict[str, float]:
        """Return virtual time, and the share of it in which clients work."""
        simulation = self.simulation
        values = {"fed/virtual_time": self.clock.time(simulation.now)}
        if simulation.now:
            values["fed/utilization"] = simulation.worked / (self.most_at_once * simulation.now)
        return values

    # ---- checkpoints ----

    def frozen_state(self) -> Callable[[], dict[str, Any]]:
        """Return a function that gives the present state, which costs little before it is called."""
        return super().frozen_state() if self.defines_state else self._under_way()

    def state_dict(self) -> dict[str, Any]:
        """Return all that is under way."""
        return self._under_way()()

    def _under_way(self) -> Callable[[], dict[str, Any]]:
        return partial(_state_of, self.uploads, self.simulation.copy())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what was under way at a checkpoint."""
        self.uploads, self.simulation = state["uploads"], Simulation.from_state(state["simulation"], self._model)


def _state_of(uploads: int, simulation: Simulation) -> dict[str, Any]:
    return {"uploads": uploads, "simulation": simulation.state_dict()}
