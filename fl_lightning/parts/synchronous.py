"""Algorithms whose clients begin a round together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.federation import ClientResult, Federation, Task
from fl_lightning.parts.guards.checked_returns import checked_slots
from fl_lightning.parts.guards.contracts import call_for_vector
from fl_lightning.parts.guards.drawn_cohorts import draw_cohort
from fl_lightning.parts.guards.received_models import check_due, note_missing, refuse_missing
from fl_lightning.parts.guards.seeded_draws import Moment
from fl_lightning.parts.schedules import Schedule
from fl_lightning.parts.traffic import Payload, RoundReport
from fl_lightning.seeding import Stream, numpy_generator

#: A client, its score, and what it uploaded.
_HandedIn = tuple[int, float | None, Payload]


class SynchronousAlgorithm(Algorithm):
    """Clients begin a round together, and the server may act at its end.

    Args:
        parts: The arguments of :class:`Algorithm`; the schedule is a :class:`Schedule`.

    Raises:
        ValueError: If the objective needs all clients of a round to start from the server's model, and the schedule
            lets models circulate.
    """

    schedule: Schedule

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.planned_tasks: list[Task] = []  # without those of clients that dropped out
        self._dropped = 0
        self._done: dict[int, _HandedIn] = {}
        self._failed: list[int] = []
        self._due: dict[int, Task] = {}  # the round's tasks by slot

    def configure(self, *args: Any, **kwargs: Any) -> None:
        """Take the settings that all algorithms share, and check that the parts can be combined."""
        super().configure(*args, **kwargs)
        self.schedule.check_participation(self.participation)
        if self.objective.starts_from_server and self.schedule.keeps_models:
            raise ValueError(
                f"{type(self.objective).__name__} cannot train circulating models: its clients keep differences to the "
                "server's model, but only the first inner round starts from that model. Use `Proximal(mu)` with "
                "RADFed, or FedDyn and Scaffold without redistribution."
            )

    @property
    def aggregated(self) -> bool:
        """Whether the model that was published last is one that the server aggregated."""
        return super().aggregated and self.schedule.shows_aggregate

    def on_fit_start(self, federation: Federation, *, fresh: bool) -> None:
        """Start a fit, or go on; see :meth:`Algorithm.on_fit_start`."""
        self._done, self._failed = {}, []  # of a round whose end failed half-way
        # a circulating model stays on its process, and its clients' vectors are needed wherever it is
        circulates = self.schedule.keeps_models and federation.num_ranks > 1
        super().on_fit_start(replace(federation, replicates_states=circulates), fresh=fresh)

    def owner(self, task: Task, num_ranks: int) -> int | None:
        """Return the process to which a task belongs because of what is kept there; ``None`` if any will do."""
        return task.slot % num_ranks if self.schedule.keeps_models else super().owner(task, num_ranks)

    # ---- a round ----

    def on_round_start(self, round_index: int, full_work: int = 1) -> None:
        """Draw the clients of a round.

        Raises:
            ValueError: If the number of circulating models would change in the middle of a cycle.
        """
        sizes, seed = self.federation.sizes, self.federation.seed
        self.start_round(round_index)
        rng = numpy_generator(seed, Stream.SAMPLING, round_index)
        chances = numpy_generator(seed, Stream.PARTICIPATION, round_index)
        with self.drawing(Moment.COHORT, round_index):
            available = self.participation.reachable(round_index, len(sizes), chances)
            drawn = draw_cohort(self.sampler, len(sizes), rng, available)
            self.same.check_cohort(self.sampler, drawn, self.federation)
            clients, work = self.participation.outcome(drawn, full_work, chances)
            chosen = self.schedule.choose_slots(len(clients), self.sampler.cohort_size(len(sizes)), rng)
        slots = checked_slots(self.schedule, chosen, len(clients))
        self.planned_tasks = [
            Task(slot, int(client), int(sizes[client]), part, round_index)
            for slot, client, part in zip(slots, clients, work, strict=False)
        ]
        self._due = {task.slot: task for task in self.planned_tasks}
        self._dropped = len(drawn) - len(clients)

    def task_groups(self) -> Iterator[list[Task]]:
        """Yield the round's tasks."""
        yield self.planned_tasks

    def receive(self, result: ClientResult) -> None:
        """Take a finished client's result; one with NaN or infinite values is left out.

        Raises:
            FloatingPointError: If there are such values and ``invalid_updates`` is ``"raise"``.
            RuntimeError: If the client's result is there already, or is not one of the round's.
        """
        task = result.task
        check_due(task, self._due, is_there=task.slot in self._done or task.slot in self._failed)
        uploaded = self._uploaded(result)
        if uploaded is None:
            self._failed.append(task.slot)
            return
        self.changing_buffers.watch(result)
        with self.at_work(Moment.RECEIVE, task):
            self.schedule.receive(uploaded, self.server)
        self._done[task.slot] = task.client, result.score, uploaded.payload

    def on_round_end(self) -> Tensor:
        """End the round and let the server act if it is time.

        Returns:
            The model that the user sees now, shape ``(size,)``.
        """
        self.same.check_vectors(self.all_parts, self.federation)
        shares = self.federation.gather((self._done, self._failed, self.changing_buffers.seen))
        done = dict(sorted(item for mine, _, _ in shares for item in mine.items()))
        failed = sorted(slot for _, slots, _ in shares for slot in slots)
        seen = set().union(*(seen for _, _, seen in shares))
        refuse_missing(self.planned_tasks, {*done, *failed})
        self.server.end_round(partial(self._change, done, failed, seen))
        with self.drawing(Moment.PUBLISH, self._round):
            self.schedule.on_round_end()
            try:
                shown = self._published_by_schedule(failed)
            except Exception as error:  # an aggregation may need more results
                note_missing(error, self._round, [self._client_of[slot] for slot in failed], self._dropped)
                raise
        self.server.complete_round()
        if self.server.has_results:
            raise RuntimeError(
                f"{type(self.schedule).__name__} gave the server results and did not let it move, so they would not be "
                "in checkpoints. Keep results in the schedule, in its `state_dict`, and call `server.take` in the "
                "round in which `server.move` is called."
            )
        self._done, self._failed = {}, []
        return self._publish(shown)

    def _published_by_schedule(self, failed: Sequence[int]) -> Tensor:
        model, n = self.server.model, self.federation.num_parameters
        given = self.server, failed
        return call_for_vector(self.schedule, "publish", *given, watch=(model,), lengths=(len(model),), finite=n)

    @property
    def _client_of(self) -> dict[int, int]:
        """The round's clients by slot."""
        return {slot: task.client for slot, task in self._due.items()}

    def _change(self, done: Mapping[int, _HandedIn], failed: Sequence[int], seen: set[int]) -> None:
        """Let traffic and all parts but the schedule go on, once the results are merged.

        Args:
            done: Client, score and upload by slot.
            failed: Slots whose client handed in nothing usable.
            seen: Places of the buffers that clients changed.
        """
        self.is_half_changed = True  # from here on nothing can be taken back
        self.changing_buffers.add(seen)
        reported = [client for client, _, _ in done.values()]
        self.report = RoundReport(reported, self._dropped, [self._client_of[slot] for slot in failed])
        uploads = [payload for _, _, payload in done.values()] + [self.meter.payload_up] * len(failed)
        buffers = self.changing_buffers.places()
        self.meter.count(self.traffic, len(self.planned_tasks) + self._dropped, uploads, buffers)
        with self.drawing(Moment.ROUND_END, self._round):
            self.sampler.take_scores({client: score for client, score, _ in done.values() if score is not None})
            for part in self.parts.values():
                if part is not self.schedule:
                    part.on_round_end()

    def _abort(self) -> None:
        self._done, self._failed = {}, []
        super()._abort()
