"""Asynchronous federated algorithms over a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from fl_lightning.arguments import check_count, check_positive
from fl_lightning.parts.algorithm import Algorithm, Invalid, is_finite
from fl_lightning.parts.asynchronous.arrivals import Arrival, ArrivalRule
from fl_lightning.parts.asynchronous.flights import Flight
from fl_lightning.parts.asynchronous.report import ArrivalRecord, ArrivalReport, Outcome
from fl_lightning.parts.asynchronous.schedule import Asynchronous
from fl_lightning.parts.exchange.buffers import BufferPolicy
from fl_lightning.parts.federation import ClientResult, Federation, Task
from fl_lightning.parts.objectives import LocalObjective
from fl_lightning.parts.participation import Participation
from fl_lightning.parts.sampling import ClientSampler
from fl_lightning.parts.server_optimizers import ServerOptimizer
from fl_lightning.seeding import Stream, numpy_generator


class AsynchronousAlgorithm(Algorithm):
    """A server that acts on each result as it arrives in virtual time.

    A round is ``m`` arrivals. A client is trained when its result is due, together with others that are under way: its
    result depends only on the model that it received.

    Args:
        sampler: Gives m.
        schedule: When clients get which model.
        rule: Collects results until the server moves.
        server: How does the server move?
        objective: What does a client minimise?
        max_staleness: Results that are staler are rejected; ``None`` takes all.
        once_per_buffer: Whether a client's second result in a buffer is rejected.
        broadcast_threshold: Relative change ``|x_t - x_{t-1}| / |x_{t-1}|`` of the server's parameters in one move
            above which the model is sent to all clients. Those that train are not interrupted, so that it costs
            traffic and changes no result.

    Raises:
        ValueError: If an argument is out of its range; when the fit begins, if the buffer could never be full.
    """

    schedule: Asynchronous
    aggregation: ArrivalRule
    report: ArrivalReport

    def __init__(
        self,
        *,
        sampler: ClientSampler,
        schedule: Asynchronous,
        rule: ArrivalRule,
        server: ServerOptimizer,
        objective: LocalObjective | None = None,
        max_staleness: int | None = None,
        once_per_buffer: bool = False,
        broadcast_threshold: float | None = None,
    ) -> None:
        check_count("max_staleness", 0 if max_staleness is None else max_staleness, minimum=0)
        if broadcast_threshold is not None:
            check_positive("broadcast_threshold", broadcast_threshold)
        if objective is not None and type(objective).end is not LocalObjective.end:
            raise ValueError(
                f"{type(objective).__name__} cannot be the local objective of an asynchronous algorithm: its clients "
                "keep vectors that change in step with the server's rounds. Use `Proximal(mu)`."
            )
        super().__init__(sampler=sampler, schedule=schedule, aggregation=rule, server=server, objective=objective)
        self.max_staleness, self.once_per_buffer = max_staleness, once_per_buffer
        self.broadcast_threshold = broadcast_threshold
        self.broadcasts = 0
        self._boundary: dict[str, Any] | None = None
        self._arrivals = 0

    def configure(self, participation: Participation | None, buffers: BufferPolicy, invalid_updates: Invalid) -> None:
        """Take the settings that all algorithms share, and check that the parts fit together."""
        if participation is not None:
            raise ValueError(
                "`participation` is for rounds that all clients begin together. Clients that come, go or drop out in "
                "virtual time are those of VirtualClock(online=..., dropout=...), given as `clock`."
            )
        if buffers.buffers == "local":
            raise ValueError(
                '`buffers="local"` is for synchronous rounds; an asynchronous algorithm takes "average" or "server".'
            )
        super().configure(participation, buffers, invalid_updates)

    def begin(self, federation: Federation, *, fresh: bool) -> None:
        """Start a fit, or go on; see :meth:`Algorithm.begin`."""
        super().begin(federation, fresh=fresh)
        self._boundary = None
        size, most = self.aggregation.buffer_size, self.schedule.most_at_once
        if (self.schedule.wait_for_flush or self.once_per_buffer) and size > most:
            raise ValueError(
                f"`buffer_size` is {size}, but only {most} clients train at once, and none adds a second result before "
                f"the buffer is full: it would never be. Give at most {most}, or let clients go on at once."
            )

    # ---- a round ----

    def plan(self, round_index: int, sizes: np.ndarray, seed: int, full_work: int = 1) -> int:
        """Begin a round; its tasks come in :meth:`batches`.

        Returns:
            About how many of them there will be: what arrives and is not there yet, and what is trained ahead.
        """
        self._boundary = self._present(self.schedule.freeze())
        for part in self._parts.values():
            part.begin_round(round_index)
        self._arrivals = self.sampler.cohort_size(len(sizes))
        self.schedule.enter(round_index, numpy_generator(seed, Stream.SAMPLING, round_index), self._arrivals)
        self.report = ArrivalReport()
        ahead = min(self.schedule.together(self._arrivals), self.schedule.most_at_once)
        # what is trained ahead is on average half used up when a round ends
        return max(0, self._arrivals - len(self.schedule.sky.results)) + ahead // 2

    def rounds_under_way(self) -> Collection[int]:
        """Return the earlier rounds on whose models clients have yet to be trained."""
        return self.schedule.sky.rounds

    def batches(self) -> Iterator[list[Task]]:
        """Yield the tasks that are to be trained next, until the round's results have arrived."""
        schedule, sent = self.schedule, self.schedule.sky.number
        for _ in range(self._arrivals):
            slot = schedule.next_arrival(self.server)
            if slot is None:
                self._raise_empty()
            if slot not in schedule.sky.results:
                tasks = schedule.to_train(self._arrivals)
                yield tasks
                self._exchange(tasks)
            self._take(slot)
        self._count_flights(schedule.sky.number - sent)

    def start(self, task: Task) -> Tensor:
        """Return the model that the client received, shape ``(size,)``; not to be written to."""
        return self.schedule.start(task.slot, self.server)

    def receive(self, result: ClientResult) -> None:
        """Keep a result until it is due.

        Raises:
            FloatingPointError: If it has NaN or infinite values and ``invalid_updates`` is ``"raise"``.
        """
        if self.invalid_updates == "raise" and not is_finite(result.vector):
            self._raise_if_asked(result.task)
        self.schedule.receive(result, self.server)

    def close_round(self) -> Tensor:
        """End the round and return the server's model, shape ``(size,)``."""
        if self.schedule.flush_rounds:
            self._move()
        self._published = self.schedule.close(self.server, ())
        self._boundary = None
        return self._published

    def discard_round(self) -> None:
        """Go back to the round's start."""
        if self._boundary is not None:
            boundary, self._boundary = self._boundary, None
            self._restore({**boundary, "schedule": boundary["schedule"]()})

    def values(self) -> dict[str, float]:
        """Return what a round logs: virtual time, staleness of its results, utilisation, buffer."""
        late = [record.staleness for record in self.report.arrivals if record.outcome != "lost"]
        return {
            **self.schedule.values(),
            "fed/staleness": float(np.mean(late)) if late else 0.0,
            "fed/staleness_max": max(late, default=0),
            "fed/rejected": sum(record.outcome == "rejected" for record in self.report.arrivals),
            "fed/buffer": self.aggregation.occupancy,
            **({"fed/broadcasts": self.broadcasts} if self.broadcast_threshold is not None else {}),
        }

    # ---- arrivals ----

    def _take(self, slot: int) -> None:
        """Let the server act on a result, and decide what its client does next."""
        schedule, server = self.schedule, self.server
        flight, start = schedule.sky.land(slot)
        vector = schedule.sky.results.pop(slot)
        if self.buffers.buffers == "server":
            n = server.num_parameters
            vector = torch.cat([vector[:n], server.model[n:]])
        client, counter = flight.task.client, schedule.counter(server)
        staleness, moved = counter - flight.stamp, False
        outcome = self._judge(client, staleness, vector)
        if outcome == "used":
            self.report.reported.append(client)
            arrival = Arrival(client, flight.task.num_samples, start, vector, staleness, counter)
            self.aggregation.add(arrival, server.model)
            if self.aggregation.occupancy >= self.aggregation.buffer_size:
                moved = self._move()
        elif outcome == "invalid":
            self.report.left_out.append(client)
        schedule.uploads += 1
        if outcome == "used" and schedule.wait_for_flush and not moved:
            schedule.sky.waiting.append(client)
        else:
            schedule.free([client])
        self._note_lost()
        self._note(flight, staleness, outcome, moved)

    def _judge(self, client: int, staleness: int, vector: Tensor) -> Outcome:
        if not is_finite(vector):
            return "invalid"
        too_stale = self.max_staleness is not None and staleness > self.max_staleness
        return "rejected" if too_stale or (self.once_per_buffer and self.aggregation.holds(client)) else "used"

    def _move(self) -> bool:
        """Let the server move, and the clients that wait for it go on; return whether there was anything to do."""
        server, n = self.server, self.server.num_parameters
        before = server.model
        aggregate = server.merge()
        if aggregate is None:
            return False
        server.move(aggregate)
        if self.broadcast_threshold is not None:
            change = torch.linalg.vector_norm(server.model[:n] - before[:n])
            if change > self.broadcast_threshold * torch.linalg.vector_norm(before[:n]):
                self.broadcasts += 1
                self._count_models(down=len(self.schedule._sizes), up=0)
        waiting, self.schedule.sky.waiting = self.schedule.sky.waiting, []
        self.schedule.free(waiting)
        return True

    def _exchange(self, tasks: list[Task]) -> None:
        """Make every process know the results of all: one flat reduction."""
        assert self._federation is not None
        results = self.schedule.sky.results
        if self._federation.num_ranks == 1:
            return
        model = self.server.model
        rows = torch.stack([results.get(task.slot, torch.zeros_like(model)) for task in tasks])
        for task, row in zip(tasks, self._federation.sum_over_ranks(rows), strict=True):
            results[task.slot] = row.clone()

    # ---- accounts ----

    def _note(self, flight: Flight, staleness: int, outcome: Outcome, moved: bool) -> None:
        sent, arrived = (self.schedule.clock.time(tick) for tick in (flight.sent, flight.due))
        self.report.arrivals.append(ArrivalRecord(flight.task.client, sent, arrived, staleness, outcome, moved))

    def _note_lost(self) -> None:
        """Note the clients that were lost since the last arrival."""
        lost, self.schedule.lost = self.schedule.lost, []
        self.report.dropped += len(lost)
        for flight in lost:
            self._note(flight, -1, "lost", False)

    def _count_flights(self, sent: int) -> None:
        self._count_models(down=sent, up=self._arrivals)

    def _count_models(self, down: int, up: int) -> None:
        size = len(self.server.model)
        self.traffic.models_down += down
        self.traffic.models_up += up
        self.traffic.values_down += size * down
        self.traffic.values_up += size * up

    def _raise_empty(self) -> NoReturn:
        sky, rule = self.schedule.sky, self.aggregation
        raise RuntimeError(
            f"No client is at work any more at virtual time {self.schedule.clock.time(sky.now):g} and none comes back: "
            f"{len(sky.waiting)} wait for the buffer, which has {rule.occupancy} of {rule.buffer_size} results. Give "
            "`online` longer windows, or a smaller `buffer_size`."
        )

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Return the state at the last round boundary, with all work under way."""
        if self._server is None:
            return {}
        state = self._boundary or self._present(self.schedule.state_dict)
        return {**state, "schedule": state["schedule"]()}

    def _present(self, schedule: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the present state, in which the schedule's is yet to be written out."""
        parts = {name: part.state_dict() for name, part in self._parts.items() if part is not self.schedule}
        return {
            "model": self.server.model,
            "aggregations": self.server.aggregations,
            "traffic": vars(self.traffic).copy(),
            "broadcasts": self.broadcasts,
            **parts,
            "schedule": schedule,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self.broadcasts = state["broadcasts"]
