"""Asynchronous schedules: results arrive in virtual time, and the server moves when its buffer is full.

For two clients that take 2 and 3 units, with a buffer of one result::

    0   both get the first model, version 0
    2   client 0 answers; the server moves to version 1; client 0 gets it
    3   client 1 answers with staleness 1; the server moves to version 2; client 1 gets it
    4   client 0 answers with staleness 1; ...

What a client makes of its model does not depend on when that happens. So clients are trained when the first of their
results is due, several together, and the results are kept until their time comes. Who is at work, and what happens
next, is in ``clients_at_work.py``.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.clock import VirtualClock
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ArrivalRecord, ClientResult, Outcome, RoundReport, Task
from fl_lightning.parts.part import walk
from fl_lightning.parts.schedules.base import Play, Schedule
from fl_lightning.parts.schedules.clients_at_work import ClientsAtWork, Flight
from fl_lightning.parts.server import Server
from fl_lightning.settings import Count, Natural, Positive

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm

#: Most clients that are trained together before their results are due.
_MOST_AHEAD = 64
#: So many times as many results are kept.
_KEPT_AHEAD = 4

Stamp = Literal["version", "upload", "upload-literal"]


@dataclass(eq=False, repr=False)
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
            at most 64, if ``None``. At most four times as many results are kept. The model does not depend on it;
            privacy ledgers count a training when it is made. Where clients have models or values of their own, by which
            they are evaluated, each trains when its result is due, so that these are as old as the result.

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
    sends_updates_alone = True
    asynchronous = True
    has_virtual_time = True
    starts_from_server = False

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        self.clients = ClientsAtWork(self.clock, self.concurrency)

    @property
    @override
    def repeats_in_buffer(self) -> bool:  # type: ignore[override]
        """Whether the buffer may hold several results of one client."""
        waits = self.wait_for_flush and not self.repeats_clients
        return self.buffer_size > 1 and not (self.once_per_buffer or waits)

    @property
    @override
    def has_models_under_way(self) -> bool:
        """Whether clients work on models of this fit."""
        return bool(self.clients.flights)

    @property
    @override
    def virtual_time(self) -> float:
        return self.clock.time(self.clients.now)

    @override
    def at_work(self) -> Sequence[tuple[int, float]]:
        return [(flight.task.client, self.clock.time(flight.sent)) for flight in self.clients.flights.values()]

    @override
    def setup(self, federation: Federation) -> None:
        """Start with an empty buffer.

        Raises:
            ValueError: If there are fewer clients than train at once, or the buffer could never be full.
        """
        self.clock.setup(federation)
        number = federation.num_clients
        most_at_once = self.concurrency or number
        if self.concurrency is not None and self.concurrency > number:
            raise ValueError(f"`concurrency` must be at most {number}, the clients that train, got {self.concurrency}.")
        if (self.wait_for_flush or self.once_per_buffer) and self.buffer_size > most_at_once:
            raise ValueError(
                f"`buffer_size` must be at most {most_at_once}, the clients that train at once, got "
                f"{self.buffer_size}: the buffer would never be full."
            )
        self.uploads: int
        self.add_state("uploads", 0)
        self.broadcasts: int
        self.add_state("broadcasts", 0)
        #: Results that were trained ahead of their arrival, by slot; None for invalid ones.
        self.results: dict[int, ClientResult | None]
        self.add_state("results", {})
        #: Results since the server's last move.
        self.buffer: list[ClientResult]
        self.add_state("buffer", [])
        #: Clients that wait for the server's move.
        self.waiting: list[int]
        self.add_state("waiting", [])
        self.report: RoundReport = RoundReport()

    # ---- a round ----

    @override
    def on_round_start(self, round_index: int) -> None:
        self.report = RoundReport()

    @override
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

    @override
    def expected_tasks(self) -> int:
        """Return about how many tasks the round will have."""
        # What is trained ahead is on average half used up at the end.
        ahead = min(self._together, self.clients.most_at_once) // 2
        due = max(0, self.cohort_size - len(self.results))
        return due + ahead

    @override
    def rounds_under_way(self) -> Collection[int]:
        """Return the earlier rounds on whose models clients have yet to be trained."""
        rounds: set[int] = set()
        for slot, flight in self.clients.flights.items():
            if slot not in self.results and not flight.lost:
                rounds.add(flight.task.round)
        return rounds

    @override
    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Let results arrive until the round has as many as clients usually train."""
        for _ in range(self.cohort_size):
            flight = self._next_arrival(server)
            if flight.task.slot not in self.results:
                together = self._next_tasks(flight)
                results = self.federation.gather_results(list((yield together)))
                trained = {result.task.slot: result for result in results}
                for task in together:
                    # A client whose result is invalid has none.
                    self.results[task.slot] = trained.get(task.slot)
            self._arrive(flight, server)
        if self.flush_rounds:
            self._move(server)
        self.report.num_sent += len(self.clients.sent_in_round)
        self.report.receivers += self.clients.sent_in_round
        return server.model

    @override
    def check_with(self, algorithm: "Algorithm") -> Iterable[str]:
        """Yield whether clients that are evaluated with what they keep would train ahead of their results."""
        keepers = [part for part in walk(*algorithm.parts.values()) if part.has_personal]
        self._trains_ahead = not keepers
        if keepers and (self.lookahead or 1) > 1:
            yield (
                f"`lookahead` must be 1 or None with {keepers[0]!r}, by which clients are evaluated, got "
                f"{self.lookahead}: their own values would be of results that have not arrived."
            )

    @property
    def _together(self) -> int:
        """How many clients are trained together."""
        if not self._trains_ahead:
            return 1
        return self.lookahead or min(self.cohort_size, _MOST_AHEAD)

    def _next_tasks(self, flight: Flight) -> list[Task]:
        """Return the task whose result is due now, and those that are due next and are not there yet."""
        # A client that has just begun may be due before those that were trained ahead: these must not pile up.
        space = max(1, _KEPT_AHEAD * self._together - len(self.results))
        most = min(self._together, space)
        return [flight.task, *self.clients.next_ends(most - 1, self.results)]

    @override
    def sent(self, task: Task, server: Server) -> Tensor:
        """Return the server's model of the time at which the client began."""
        return self.clients.flights[task.slot].model

    # ---- arrivals ----

    def _next_arrival(self, server: Server) -> Flight:
        """Go on to the next result, sending models to clients as their turn comes; return its flight.

        Raises:
            RuntimeError: If no client works and none will come.
        """
        clients = self.clients
        while True:
            stamp = self._counter(server)
            if self.stamp == "upload-literal":
                # As if the server sent its counter before it increases it.
                stamp = max(0, stamp - 1)
            clients.send_all(server.model, stamp, len(self.waiting))
            if not clients.events:
                raise RuntimeError(
                    f"No client is at work any more at virtual time {self.virtual_time:g} and none comes back; "
                    f"the buffer has {len(self.buffer)} of {self.buffer_size} results. Give longer windows `online`."
                )
            flight = clients.next_event()
            if flight is None:
                continue
            if not flight.lost:
                return flight
            self.report.dropped += 1
            clients.land(flight)
            self._record(flight, -1, "lost", False)
            self._free([flight.task.client])

    def _arrive(self, flight: Flight, server: Server) -> None:
        """Let a result arrive: buffer it, move the server if the buffer is full, and let its client go on."""
        self.clients.land(flight)
        result = self.results.pop(flight.task.slot)
        client = flight.task.client
        counter = self._counter(server)
        staleness = counter - flight.stamp
        outcome: Outcome
        is_full = False
        moved = False
        if result is None:
            outcome = "invalid"
            self.report.uploads.append((flight.task, server.left_out_payload(flight.task)))
            self.report.left_out.append(client)
        else:
            outcome = "used" if self._admits(client, staleness) else "rejected"
            self.report.uploads.append((flight.task, result.payload))
            self.report.numbers += result.numbers
        if result is not None and outcome == "used":
            self.report.reported.append(client)
            server.look_at_buffers(result)
            self.buffer.append(replace(result, staleness=staleness, counter=counter))
            is_full = len(self.buffer) >= self.buffer_size
            if is_full:
                moved = self._move(server)
        self.uploads += 1
        if outcome == "used" and self.wait_for_flush and not is_full:
            self.waiting.append(client)
        else:
            self._free([client])
        self._record(flight, staleness, outcome, moved)

    def _counter(self, server: Server) -> int:
        """Return the server's counter, from which staleness is taken."""
        return server.moves if self.stamp == "version" else self.uploads

    def _admits(self, client: int, staleness: int) -> bool:
        """Return whether a result may enter the buffer."""
        if self.max_staleness is not None and staleness > self.max_staleness:
            return False
        if not self.once_per_buffer:
            return True
        return all(result.client != client for result in self.buffer)

    def _move(self, server: Server) -> bool:
        """Hand the buffer to the server, and let the clients that wait for that go on; return whether it moved."""
        layout = self.federation.layout
        before, _ = layout.split(server.model)
        for result in self.buffer:
            server.take(result, everywhere=True)
        moved = server.move()
        if moved and self.broadcast_threshold is not None:
            now, _ = layout.split(server.model)
            change = torch.linalg.vector_norm(now - before)
            if change > self.broadcast_threshold * torch.linalg.vector_norm(before):
                self.broadcasts += 1
                sizes = self.federation.sizes.tolist()
                everyone = [Task(client, client, size, round=self.round) for client, size in enumerate(sizes)]
                self.report.num_sent += len(everyone)
                self.report.receivers += everyone
        waiting = self.waiting
        self.buffer = []
        self.waiting = []
        self._free(waiting)
        return moved

    def _free(self, clients: Collection[int]) -> None:
        """Let clients train again."""
        self.clients.free(clients)

    def _record(self, flight: Flight, staleness: int, outcome: Outcome, moved: bool) -> None:
        sent = self.clock.time(flight.sent)
        arrived = self.clock.time(flight.due)
        record = ArrivalRecord(flight.task.client, sent, arrived, staleness, outcome, moved, flight.task.slot)
        self.report.arrivals.append(record)

    # ---- logs ----

    @override
    def values(self) -> dict[str, float]:
        """Return the staleness of the round's results, the buffer, virtual time, and how much of it clients work."""
        staleness: list[int] = []
        rejected = 0
        for record in self.report.arrivals:
            if record.outcome != "lost":
                staleness.append(record.staleness)
            if record.outcome == "rejected":
                rejected += 1
        values: dict[str, float] = {
            "fed/staleness": float(np.mean(staleness)),
            "fed/staleness_max": max(staleness),
            "fed/rejected": rejected,
            "fed/buffer": len(self.buffer),
        }
        if self.broadcast_threshold is not None:
            values["fed/broadcasts"] = self.broadcasts
        return {**values, **self._times()}

    def _times(self) -> dict[str, float]:
        values = {"fed/virtual_time": self.virtual_time}
        utilization = self.clients.utilization
        if utilization is not None:
            values["fed/utilization"] = utilization
        return values
