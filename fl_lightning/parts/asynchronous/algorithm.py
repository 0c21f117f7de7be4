"""Asynchronous federated algorithms over a virtual clock."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.asynchronous.flights import Flight
from fl_lightning.parts.asynchronous.report import ArrivalRecord, ArrivalReport, Outcome
from fl_lightning.parts.asynchronous.schedule import Asynchronous
from fl_lightning.parts.federation import ClientResult, Federation, Task
from fl_lightning.parts.guards.received_models import check_due, refuse_missing
from fl_lightning.parts.guards.seeded_draws import Moment
from fl_lightning.parts.part import Part
from fl_lightning.parts.participation import Participation
from fl_lightning.parts.sampling import Arrivals, ClientSampler
from fl_lightning.parts.saved_results import results_of_all
from fl_lightning.parts.traffic import Traffic
from fl_lightning.seeding import Stream, numpy_generator


class AsynchronousAlgorithm(Algorithm):
    """A server that acts on results as they arrive in virtual time.

    A round is ``m`` arrivals, with m the sampler's cohort size. A client is trained when its result is due, together
    with others that are under way: its result depends only on the model that it received. Arrived results are in the
    schedule's buffer until the server moves.

    Args:
        parts: The arguments of :class:`Algorithm`; the schedule is :class:`Asynchronous`.

    Raises:
        ValueError: If the objective needs rounds that all clients begin together.
    """

    schedule: Asynchronous
    report: ArrivalReport

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.broadcasts = 0
        self._boundary: dict[str, Any] | None = None
        self._arrivals = 0
        self._due: dict[int, Task] = {}  # the tasks that are trained together now, by slot

    def configure(self, participation: Participation | None = None, *args: Any, **kwargs: Any) -> None:
        """Take the settings that all algorithms share, and check that the parts fit together."""
        if participation is not None:
            raise ValueError(
                "`participation` is for rounds that all clients begin together. For clients that come, go or drop out "
                "in virtual time, give `clock=VirtualClock(online=..., dropout=...)`."
            )
        super().configure(None, *args, **kwargs)
        if self.objective.starts_from_server:
            raise ValueError(
                f"{type(self.objective).__name__} cannot be the local objective of an asynchronous algorithm: its "
                "clients keep vectors that change in step with the server's rounds. Use `Proximal(mu)`."
            )

    def on_fit_start(self, federation: Federation, *, fresh: bool) -> None:
        """Start a fit, or go on; see :meth:`Algorithm.on_fit_start`.

        Raises:
            ValueError: If the aggregation keeps vectors of clients, or clients keep some and several models at once.
        """
        self.broadcasts = 0 if fresh else self.broadcasts
        super().on_fit_start(federation, fresh=fresh)
        if self.aggregation.keeps_client_states:
            raise ValueError(
                f"{type(self.aggregation).__name__} keeps a vector of each client, which changes in step with rounds "
                "that clients begin together. Give an asynchronous algorithm another aggregation."
            )
        if self.schedule.repeats_clients and self.keeps_client_states:
            keepers = [type(part).__name__ for part in self.parts.values() if part.keeps_client_states]
            raise ValueError(
                f"`history` lets a client train on several models at once, so it cannot keep a vector, as {keepers} "
                "does. Give a clock, or leave that part out."
            )

    def replace_sampler(self, sampler: ClientSampler) -> None:
        """Take another number of results in a round.

        Raises:
            TypeError: If the sampler is another one than :class:`Arrivals`: clients train whenever they are free.
        """
        if not isinstance(sampler, Arrivals):
            raise TypeError(
                f"`sampler` cannot be {sampler!r}: clients train whenever they are free. Set `clients_per_round`, the "
                "number of results in a round."
            )
        super().replace_sampler(sampler)

    @property
    def changing_parts(self) -> list[Part]:
        """The parts whose own states may change before the round's end, those that move with the server among them."""
        moving = self.aggregation, self.server_optimizer, self.changing_buffers, self.schedule
        held = [part for each in moving for part in each.with_held_parts]
        return held + [part for part in super().changing_parts if not any(part is other for other in held)]

    # ---- a round ----

    def on_round_start(self, round_index: int, full_work: int = 1) -> None:
        """Begin a round; its tasks come in :meth:`task_groups`."""
        self._boundary = self._own_state()
        self.start_round(round_index)
        schedule, federation = self.schedule, self.federation
        with self.drawing(Moment.COHORT, round_index):
            self._arrivals = self.sampler.cohort_size(federation.num_clients)
            rng = numpy_generator(federation.seed, Stream.SAMPLING, round_index)
            schedule.enter(round_index, rng, self._arrivals)
            ahead = min(schedule.together(self._arrivals), schedule.most_at_once)
        self.report = ArrivalReport()
        # what is trained ahead is on average half used up when a round ends
        self.unplanned_tasks = max(0, self._arrivals - len(schedule.simulation.results)) + ahead // 2

    def rounds_under_way(self) -> Collection[int]:
        """Return the earlier rounds on whose models clients have yet to be trained."""
        return self.schedule.simulation.rounds

    def task_groups(self) -> Iterator[list[Task]]:
        """Yield the tasks that are to be trained next, until the round's results have arrived."""
        schedule, sent = self.schedule, self.schedule.simulation.number
        uploads = []
        for number in range(self._arrivals):
            with self.drawing(Moment.ARRIVAL, self._round, number):
                slot = schedule.next_arrival(self.server)
            if slot not in schedule.simulation.results:
                with self.drawing(Moment.TASKS, self._round, number):
                    tasks = schedule.to_train(self._arrivals)
                self._due = {task.slot: task for task in tasks}
                yield tasks
                self._share(tasks)
            uploads.append(schedule.simulation.results[slot].payload)
            with self.drawing(Moment.TAKE, self._round, number):
                self._take(slot)
        self.changing_buffers.add(self.changing_buffers.seen)
        self.meter.count(self.traffic, schedule.simulation.number - sent, uploads, self.changing_buffers.places())

    def receive(self, result: ClientResult) -> None:
        """Keep a result until it is due; one with NaN or infinite values is left out then.

        Raises:
            FloatingPointError: If there are such values and ``invalid_updates`` is ``"raise"``.
            RuntimeError: If the client's result is there already, or no task of the executor's has it.
        """
        check_due(result.task, self._due, is_there=result.task.slot in self.schedule.simulation.results)
        uploaded = self._uploaded(result)
        if uploaded is None:  # its loss, which is not finite, says so until it is due
            uploaded = replace(result, payload=self.meter.payload_up, loss=math.inf)
        with self.at_work(Moment.RECEIVE, result.task):
            self.schedule.receive(uploaded)

    def on_round_end(self) -> Tensor:
        """End the round and return the model that the user sees, shape ``(size,)``."""
        self.same.check_vectors(self.all_parts, self.federation)
        if self.schedule.flush_rounds:
            with self.drawing(Moment.PUBLISH, self._round):
                self._move()
        self.is_half_changed = True  # from here on nothing can be taken back
        with self.drawing(Moment.ROUND_END, self._round):
            for part in self.parts.values():
                part.on_round_end()
        self._boundary = None
        return self._publish(self.server.model)

    def _abort(self) -> None:
        super()._abort()
        if self._boundary is not None:
            boundary, self._boundary = self._boundary, None
            self.server.model, self.server.aggregations = boundary["model"], boundary["aggregations"]
            self.traffic, self.broadcasts = Traffic(**boundary["traffic"]), boundary["broadcasts"]

    def _counts(self) -> dict[str, float]:
        """Return the counts of the round, the staleness of its results, and the results in the buffer."""
        late = [record.staleness for record in self.report.arrivals if record.outcome != "lost"]
        threshold = self.schedule.broadcast_threshold
        return {
            **super()._counts(),
            "fed/staleness": float(np.mean(late)) if late else 0.0,
            "fed/staleness_max": max(late, default=0),
            "fed/rejected": sum(record.outcome == "rejected" for record in self.report.arrivals),
            "fed/buffer": len(self.schedule.simulation.buffer),
            **({"fed/broadcasts": self.broadcasts} if threshold is not None else {}),
        }

    # ---- arrivals ----

    def _take(self, slot: int) -> None:
        """Let a result arrive: buffer it, move the server if the buffer is full, and let its client go on."""
        schedule, flushed, moved = self.schedule, False, False
        flight, result = schedule.arrive(slot, self.server)
        client, outcome = flight.task.client, self._judge(result)
        if outcome == "used":
            self.report.reported.append(client)
            self.changing_buffers.watch(result)
            schedule.simulation.buffer.append(result)
            if schedule.is_full:
                flushed, moved = True, self._move()
        elif outcome == "invalid":
            self.report.left_out.append(client)
        schedule.uploads += 1
        if outcome == "used" and schedule.wait_for_flush and not flushed:
            schedule.simulation.waiting.append(client)
        else:
            schedule.free([client])
        self._note_lost()
        self._note(flight, result.staleness, outcome, moved)

    def _judge(self, result: ClientResult) -> Outcome:
        if result.loss is not None and not math.isfinite(result.loss):
            return "invalid"
        return "used" if self.schedule.admits(result) else "rejected"

    def _move(self) -> bool:
        """Hand the buffer to the server, and let the clients that wait for that go on; return whether it moved."""
        server, n = self.server, self.federation.num_parameters
        before = server.model
        for result in self.schedule.empty_buffer():
            server.take(result, on_all_ranks=True)
        self.changing_buffers.add(self.changing_buffers.seen)
        moved, threshold = server.move(), self.schedule.broadcast_threshold
        if moved and threshold is not None:
            change = torch.linalg.vector_norm(server.model[:n] - before[:n])
            if change > threshold * torch.linalg.vector_norm(before[:n]):
                self.broadcasts += 1
                buffers = self.changing_buffers.places()
                self.meter.count(self.traffic, self.federation.num_clients, [], buffers)
        waiting, self.schedule.simulation.waiting = self.schedule.simulation.waiting, []
        self.schedule.free(waiting)
        return moved

    def _share(self, tasks: list[Task]) -> None:
        """Make every process know the results of all."""
        results = self.schedule.simulation.results
        if self.federation.num_ranks > 1:
            sent = {task.slot: self.schedule.start(task.slot, self.server) for task in tasks}
            results.update(results_of_all(sent, results, self.federation))
        refuse_missing(tasks, results)

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

    # ---- checkpoints ----

    def _state(self) -> dict[str, Any]:
        """Return the state at the last round boundary, with all work under way."""
        return {**super()._state(), **(self._boundary or {})}

    def _own_state(self) -> dict[str, Any]:
        return {**super()._own_state(), "broadcasts": self.broadcasts}

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self.broadcasts = state["broadcasts"]
