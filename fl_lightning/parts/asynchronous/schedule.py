"""Asynchronous schedules: which client works on which version of the model, and when its result arrives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fl_lightning.checks import Count, Natural, Positive
from fl_lightning.parts.asynchronous.clock import VirtualClock
from fl_lightning.parts.asynchronous.flights import ARRIVAL, LOSS, Flight, Simulation
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult, RoundReport, Task
from fl_lightning.parts.schedules import Play, Schedule
from fl_lightning.parts.server import Server
from fl_lightning.seeding import Stream, numpy_generator

_MOST_AHEAD = 64
_KEPT_AHEAD = 4

Stamp = Literal["version", "upload", "upload-literal"]
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


@dataclass(eq=False)
class Asynchronous(Schedule):
    """Clients work at their own pace in virtual time, and the server moves when its buffer of results is full.

    A round is ``m`` arrivals, with m the sampler's cohort size. A client is trained when its result is due, together
    with others that are under way: its result depends only on the model that it received.

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

    clock: VirtualClock
    _: KW_ONLY
    buffer_size: Count = 1
    concurrency: Count | None = None
    stamp: Stamp = "version"
    wait_for_flush: bool = False
    flush_rounds: bool = False
    max_staleness: Natural | None = None
    once_per_buffer: bool = False
    broadcast_threshold: Positive | None = None
    lookahead: Count | None = None
    asynchronous = True

    @property
    def repeats_in_buffer(self) -> bool:  # type: ignore[override]
        """Whether the buffer may hold several results of one client."""
        waits = self.wait_for_flush and not self.repeats_clients
        return self.buffer_size > 1 and not (self.once_per_buffer or waits)

    @property
    def most_at_once(self) -> int:
        """Most clients that train at once."""
        return self.concurrency or self.federation.num_clients

    @property
    def has_models_under_way(self) -> bool:
        """Whether clients work on models of this fit."""
        return bool(self.simulation.flights)

    def setup(self, federation: Federation) -> None:
        """Start at time 0, at which all clients get the first model, or as many as train at once."""
        self.clock.setup(federation)
        number = federation.num_clients
        if self.concurrency is not None and self.concurrency > number:
            raise ValueError(f"`concurrency` must be at most {number}, the clients that train, got {self.concurrency}.")
        if (self.wait_for_flush or self.once_per_buffer) and self.buffer_size > self.most_at_once:
            raise ValueError(
                f"`buffer_size` must be at most {self.most_at_once}, the clients that train at once, got "
                f"{self.buffer_size}: none adds a second result, so the buffer would never be full."
            )
        clients = list(range(number))
        outbox, idle = (clients, []) if self.concurrency is None else ([], clients)
        self.add_state("simulation", Simulation(outbox=outbox, idle=idle))
        self._ahead: dict[int, Tensor] = {}
        self.report: ArrivalReport = ArrivalReport()

    def saved(self, name: str, value: Any) -> Any:
        """Return the simulation as a checkpoint holds it."""
        return value.state_dict()

    def loaded(self, name: str, value: Any) -> Any:
        """Return the simulation of a checkpoint."""
        return Simulation.from_state(value, self.federation.model)

    # ---- a round ----

    def on_round_start(self, round_index: int) -> None:
        """Begin a round of arrivals."""
        self.report = ArrivalReport()
        self._rng = numpy_generator(self.federation.seed, Stream.SAMPLING, round_index)
        self._sent_in_round: Counter[int] = Counter()

    def unsuitable_rounds(self, rounds: int, arrivals: int) -> str | None:
        """Return a warning of fewer results in a fit than the server's buffer holds."""
        results = rounds * arrivals
        if self.flush_rounds or results >= self.buffer_size:
            return None
        return (
            f"The server never aggregates in this fit: `buffer_size` is {self.buffer_size}, and {results} results "
            f"arrive ({rounds} rounds x {arrivals}). Give a `buffer_size` of at most {results}, more "
            "`clients_per_round` or more rounds."
        )

    def expected_tasks(self) -> int:
        """Return about how many tasks the round will have."""
        ahead = min(self._together, self.most_at_once)  # what is trained ahead is on average half used up at the end
        return max(0, self.cohort_size - len(self.simulation.results)) + ahead // 2

    def rounds_under_way(self) -> Collection[int]:
        """Return the earlier rounds on whose models clients have yet to be trained."""
        return self.simulation.rounds

    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Let results arrive until the round has as many as clients usually train."""
        sent = self.simulation.number
        for _ in range(self.cohort_size):
            slot = self._next_arrival(server)
            if slot not in self.simulation.results:
                together = self._next_tasks()
                trained = {result.task.slot: result for result in (yield together)}
                self.simulation.results |= self._of_all(together, trained)
            self._arrive(slot, server)
        if self.flush_rounds:
            self._move(server)
        self.report.sent += self.simulation.number - sent
        return server.model

    @property
    def _together(self) -> int:
        """How many clients are trained together."""
        return self.lookahead or min(self.cohort_size, _MOST_AHEAD)

    def _next_tasks(self) -> list[Task]:
        """Return the tasks whose results are due next and are not there yet."""
        # a client that has just begun may be due before those that were trained ahead: these must not pile up
        space = max(1, _KEPT_AHEAD * self._together - len(self.simulation.results))
        flights = list(self.simulation.next_untrained(min(self._together, space)))
        self._ahead = {flight.task.slot: self.simulation.models[flight.version] for flight in flights}
        return [flight.task for flight in flights]

    def start(self, task: Task, server: Server) -> Tensor:
        """Return the model that the client received."""
        return self._ahead[task.slot]

    def _of_all(self, tasks: Sequence[Task], mine: dict[int, ClientResult]) -> dict[int, ClientResult | None]:
        """Return the results of tasks on all processes, with one reduction of the models; ``None`` for invalid ones."""
        federation, everyone = self.federation, dict(mine)
        if federation.num_ranks > 1:
            sent = self._ahead
            rows = [mine[t.slot].vector if t.slot in mine else torch.zeros_like(sent[t.slot]) for t in tasks]
            sums = dict(zip((t.slot for t in tasks), federation.sum_over_ranks(torch.stack(rows)), strict=True))
            rest = {
                slot: {**r.state_dict(), "vector": None, "start": None if r.start is sent[slot] else r.start.cpu()}
                for slot, r in mine.items()
            }
            for slot, state in federation.join(rest).items():
                start = sent[slot] if state["start"] is None else state["start"].to(sent[slot].device)
                everyone[slot] = ClientResult.from_state(state, start=start, vector=sums[slot].clone())
        return {task.slot: everyone.get(task.slot) for task in tasks}

    # ---- arrivals ----

    def _next_arrival(self, server: Server) -> int:
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
                    f"back; the buffer has {len(simulation.buffer)} of {self.buffer_size} results. Give `online` "
                    "longer windows, or a smaller `buffer_size`."
                )
            if event.kind == ARRIVAL:
                return event.slot
            if event.kind == LOSS:
                flight = simulation.complete(event.slot)
                self.report.dropped += 1
                self._record(flight, -1, "lost", False)
                self._free([flight.task.client])
            elif self.concurrency is None:
                simulation.outbox.append(event.client)

    def _arrive(self, slot: int, server: Server) -> None:
        """Let a result arrive: buffer it, move the server if the buffer is full, and let its client go on."""
        simulation, flushed, moved = self.simulation, False, False
        flight, result = simulation.complete(slot), simulation.results.pop(slot)
        client, counter = flight.task.client, self._counter(server)
        staleness = counter - flight.stamp
        outcome: Outcome = "invalid" if result is None else "used" if self._admits(client, staleness) else "rejected"
        self.report.uploads.append(server.left_out_payload if result is None else result.payload)
        if outcome == "used":
            assert result is not None
            self.report.reported.append(client)
            server.watch(result)
            simulation.buffer.append(replace(result, staleness=staleness, counter=counter))
            if len(simulation.buffer) >= self.buffer_size:
                flushed, moved = True, self._move(server)
        elif outcome == "invalid":
            self.report.left_out.append(client)
        simulation.uploads += 1
        if outcome == "used" and self.wait_for_flush and not flushed:
            simulation.waiting.append(client)
        else:
            self._free([client])
        self._record(flight, staleness, outcome, moved)

    def _counter(self, server: Server) -> int:
        """Return the server's counter, from which staleness is taken."""
        return server.moves if self.stamp == "version" else self.simulation.uploads

    def _admits(self, client: int, staleness: int) -> bool:
        """Return whether a result may enter the buffer."""
        if self.max_staleness is not None and staleness > self.max_staleness:
            return False
        return not self.once_per_buffer or all(result.client != client for result in self.simulation.buffer)

    def _move(self, server: Server) -> bool:
        """Hand the buffer to the server, and let the clients that wait for that go on; return whether it moved."""
        before, n, simulation = server.model, self.federation.num_parameters, self.simulation
        for result in simulation.buffer:
            server.take(result, everywhere=True)
        moved = server.move()
        if moved and self.broadcast_threshold is not None:
            change = torch.linalg.vector_norm(server.model[:n] - before[:n])
            if change > self.broadcast_threshold * torch.linalg.vector_norm(before[:n]):
                simulation.broadcasts += 1
                self.report.sent += self.federation.num_clients
        waiting, simulation.buffer, simulation.waiting = simulation.waiting, [], []
        self._free(waiting)
        return moved

    def _free(self, clients: Collection[int]) -> None:
        """Let clients train again: they get the next model, or are drawn again."""
        (self.simulation.outbox if self.concurrency is None else self.simulation.idle).extend(clients)

    def _record(self, flight: Flight, staleness: int, outcome: Outcome, moved: bool) -> None:
        sent, arrived = (self.clock.time(tick) for tick in (flight.sent, flight.due))
        self.report.arrivals.append(ArrivalRecord(flight.task.client, sent, arrived, staleness, outcome, moved))

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
        stamp = max(0, self._counter(server) - (self.stamp == "upload-literal"))
        flight = Flight(task, server.moves, stamp, simulation.now, due)
        simulation.send(flight, server.model, LOSS if lost else ARRIVAL)

    def _task(self, client: int) -> Task:
        repetition = self._sent_in_round[client]
        self._sent_in_round[client] += 1
        return Task(self.simulation.number, client, int(self.federation.sizes[client]), None, self.round, repetition)

    # ---- logs ----

    def values(self) -> dict[str, float]:
        """Return the staleness of the round's results, the buffer, virtual time, and how much of it clients work."""
        simulation, arrivals = self.simulation, self.report.arrivals
        late = [record.staleness for record in arrivals if record.outcome != "lost"]
        values = {
            "fed/staleness": float(np.mean(late)) if late else 0.0,
            "fed/staleness_max": max(late, default=0),
            "fed/rejected": sum(record.outcome == "rejected" for record in arrivals),
            "fed/buffer": len(simulation.buffer),
        }
        if self.broadcast_threshold is not None:
            values["fed/broadcasts"] = simulation.broadcasts
        return {**values, **self._times()}

    def _times(self) -> dict[str, float]:
        simulation = self.simulation
        values = {"fed/virtual_time": self.clock.time(simulation.now)}
        if simulation.now:
            values["fed/utilization"] = simulation.worked / (self.most_at_once * simulation.now)
        return values


@dataclass(eq=False, init=False)
class SampledStaleness(Asynchronous):
    """Staleness drawn at random instead of arising from a clock (Xie et al.'s simulation; eq. (26)).

    Each result comes from a client drawn uniformly and from a model drawn uniformly among the last ``history`` ones,
    including the present one. A model is added to the history at each result, whether or not the server moved.

    Equations are numbered as in ``docs/references.md``.

    Args:
        history: D, at least 1; staleness is 0 to D - 1.
        options: Further arguments of :class:`Asynchronous`, without ``clock``, ``concurrency``, ``stamp`` and
            ``wait_for_flush``.

    Raises:
        ValueError: If ``history`` is below 1, or another argument is out of its range or has no meaning here.
    """

    history: Count
    repeats_clients = True

    def __init__(self, history: int, **options: Any) -> None:
        for name in ("clock", "concurrency", "stamp", "wait_for_flush"):
            if name in options:
                raise ValueError(f"`{name}={options[name]!r}` has no effect with `history`. Leave it out.")
        self.history = history
        super().__init__(VirtualClock(), stamp="upload", **options)

    def setup(self, federation: Federation) -> None:
        """Start with the first model alone."""
        super().setup(federation)
        self.simulation.outbox = []
        self.add_state("models", {0: federation.model})  # the last ones, by the number of results before them
        self._drawn: list[tuple[int, int, int]] = []  # which result, its client, its model's number

    def saved(self, name: str, value: Any) -> Any:
        """Return a state as a checkpoint holds it."""
        return value if name == "models" else super().saved(name, value)

    def loaded(self, name: str, value: Any) -> Any:
        """Return a state of a checkpoint."""
        if name == "models":
            return {number: model.to(self.federation.model) for number, model in value.items()}
        return super().loaded(name, value)

    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Draw the results' clients and models, then let them arrive."""
        uploads = self.simulation.uploads
        for number in range(uploads, uploads + self.cohort_size):
            staleness = int(self._rng.integers(min(number + 1, self.history)))
            self._drawn.append((number, int(self._rng.integers(self.federation.num_clients)), number - staleness))
        return (yield from super().play(tasks, server))

    def on_round_start(self, round_index: int) -> None:
        """Begin a round of arrivals."""
        super().on_round_start(round_index)
        self._drawn = []

    def _next_arrival(self, server: Server) -> int:
        """Return the slot of the next result, having begun those whose model is there."""
        simulation, uploads = self.simulation, self.simulation.uploads
        self.models[uploads] = server.model
        self.models.pop(uploads - self.history, None)
        for number, client, model in self._drawn:
            if model <= uploads:
                # a result's place in the order stands for the time at which it is due
                flight = Flight(self._task(client), model, model, simulation.now, number + 1)
                simulation.send(flight, self.models[model], ARRIVAL)
        self._drawn = [drawn for drawn in self._drawn if drawn[2] > uploads]
        event = simulation.next_event()
        assert event is not None  # every result's model is there by its turn
        return event.slot

    def _free(self, clients: Collection[int]) -> None:
        """Do nothing: the next clients are drawn."""

    def _times(self) -> dict[str, float]:
        return {}
