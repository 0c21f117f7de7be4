"""One round, from the draw of its clients to the model that users see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fl_lightning.parts.messages import ClientResult, RoundReport, Task, Upload
from fl_lightning.parts.part import walk
from fl_lightning.parts.schedules.base import Play
from fl_lightning.seeding import Stream, numpy_generator
from fl_lightning.vectors import checked_vector

if TYPE_CHECKING:
    from fl_lightning.parts.run import Run

#: Trains tasks and yields this process's results as they come.
Execute = Callable[[Sequence[Task]], Iterable[ClientResult | Upload]]
#: Returns the scores of clients before the draw, by client; called on all processes.
Score = Callable[[Sequence[Task]], Mapping[int, float]]


class Round:
    """A round of a run, in four steps: draw its clients, play its schedule, end its parts, publish a model.

    Args:
        run: The run.
        index: The round, from 0. The same seed and round give the same clients.
        full_work: Local epochs (or steps) of a client that does all.

    Attributes:
        tasks: The round's tasks, as far as they are known when it begins.
        report: What happened to its clients.
    """

    def __init__(self, run: Run, index: int, full_work: int) -> None:
        self._run = run
        self._index = index
        self._full_work = full_work
        self._scores: dict[int, float] = {}
        self.tasks: Sequence[Task] = ()
        self.report = RoundReport()

    # ---- 1. draw ----

    def draw(self, score: Score | None) -> None:
        """Draw the round's clients; those of an asynchronous schedule come as others finish.

        Args:
            score: Scores the clients that the sampler must know before it draws.

        Raises:
            ValueError: If a part cannot play the round.
        """
        algorithm = self._run.algorithm
        sampler = algorithm.sampler
        schedule = algorithm.schedule
        participation = algorithm.participation
        sizes = self._run.federation.sizes
        seed = self._run.federation.seed
        schedule.cohort_size = sampler.cohort_size(len(sizes))
        if schedule.asynchronous:
            return

        # Some samplers score clients first. Each of them receives a model, from which it trains if it is drawn. While
        # models circulate that model is another one.
        rng = numpy_generator(seed, Stream.SAMPLING, self._index)
        chances = numpy_generator(seed, Stream.PARTICIPATION, self._index)
        available = participation.reachable(self._index, len(sizes), chances)
        is_other_model = schedule.circulates and schedule.has_models_under_way
        to_score = [int(client) for client in sampler.clients_to_score(rng, available)]
        if score is not None and to_score:
            message = int(is_other_model)
            looks = [Task(k, k, int(sizes[k]), round=self._index, message=message) for k in to_score]
            sampler.take_scores(score(looks))
            self.report.scored = len(to_score)
            for part in walk(algorithm.chain):
                part.commit_vectors()

        drawn = np.asarray(sampler.draw(len(sizes), rng, available)).reshape(-1)
        are_distinct = len(np.unique(drawn)) == len(drawn)
        if not are_distinct or not np.isin(drawn, available).all():
            raise ValueError(f"`{type(sampler).__name__}.draw` must return distinct `available` clients, got {drawn}.")
        drawn = drawn.astype(np.int64)
        known: set[int] = set()
        if self.report.scored and not is_other_model:
            known = set(to_score) & set(drawn.tolist())
        if not sampler.draws_in_random_order:
            drawn = rng.permutation(drawn)

        # Some of them drop out, or do a part of the work; the others get the schedule's slots.
        clients, work = participation.outcome(drawn, self._full_work, chances)
        slots = schedule.slots(len(clients), schedule.cohort_size, rng)
        tasks = []
        for slot, client, share in zip(slots, clients.tolist(), work, strict=False):
            tasks.append(Task(slot, client, int(sizes[client]), share, self._index, is_known=client in known))
        self.tasks = tasks
        self.report.known = len(known)
        self.report.dropped = len(drawn) - len(clients)
        self.report.sent = self.report.dropped + len(self.tasks)

    # ---- 2. play ----

    def play(self, execute: Execute) -> Tensor:
        """Play the round and return the model that the user sees, shape ``(size,)``; call it on all processes.

        Args:
            execute: Trains tasks; see :attr:`Execute`.

        Raises:
            FloatingPointError: If a client or a part returns NaN or infinite values that cannot be left out.
            RuntimeError: If the schedule leaves results untaken, or the server's model was written to.
        """
        run = self._run
        schedule = run.algorithm.schedule
        server = run.server
        num_parameters = run.federation.num_parameters
        model = server.model
        version = model._version

        shown = self.drive(schedule.play(self.tasks, server), execute)
        shown = checked_vector(schedule, "play", shown, server.model, finite=num_parameters)
        if model._version != version:
            raise RuntimeError("A part wrote to the server's model. Compute a new tensor, as in `model * 0.5`.")

        self._end_parts()
        return run.algorithm.chain.on_publish(server.keep_constant(shown))

    def drive(self, play: Play, execute: Execute) -> Tensor:
        """Train the tasks that a schedule yields and send it their results, until it returns a model."""
        results: Iterator[ClientResult] = iter(())
        try:
            tasks = next(play)
            while True:
                results = self._results(tasks, execute)
                tasks = play.send(results)
                self._check_taken(results)
        except StopIteration as end:
            shown: Tensor = end.value
        self._check_taken(results)
        return shown

    def _check_taken(self, results: Iterator[ClientResult]) -> None:
        if next(results, None) is not None:
            name = type(self._run.algorithm.schedule).__name__
            raise RuntimeError(f"`{name}.play` must take all results of the tasks that it yields, but left some.")

    def _results(self, tasks: Sequence[Task], execute: Execute) -> Iterator[ClientResult]:
        """Yield this process's results as they leave the exchange; invalid ones are left out.

        A client that does not answer has dropped out.
        """
        report = self.report
        expected = sum(1 for task in tasks if not task.phase)
        before = len(report.uploads)
        # No result is held here while the next client trains.
        yield from filter(None, map(self._arrived, execute(tasks)))
        answered = len(report.uploads) - before
        # Several processes have clients of their own here, which always answer.
        if self._run.federation.num_ranks == 1:
            report.dropped += expected - answered

    def _arrived(self, result: ClientResult | Upload) -> ClientResult | None:
        """Note a result; return it as it leaves the exchange, ``None`` if it is invalid.

        A result of a further training stays on its client.
        """
        algorithm = self._run.algorithm
        report = self.report
        if isinstance(result, Upload):
            uploaded = self._from_elsewhere(result)
        elif result.task.phase:
            if not result.is_finite:
                return None
            if result.task.message:
                algorithm.chain.on_delivery(result.task, result.start)
            algorithm.schedule.on_client_end(result)
            return result
        else:
            uploaded = self._upload(result)
        if uploaded is None:
            report.left_out.append(result.task.client)
            report.uploads.append(self._run.server.left_out_payload)
            return None
        report.numbers += uploaded.numbers
        report.reported.append(uploaded.client)
        report.uploads.append(uploaded.payload)
        if uploaded.score is not None:
            self._scores[uploaded.client] = uploaded.score
        return uploaded

    def _upload(self, result: ClientResult) -> ClientResult | None:
        """Do what a client does after its training; return its result as it leaves the exchange, if it is valid."""
        algorithm = self._run.algorithm
        schedule = algorithm.schedule
        objective = algorithm.objective
        exchange = algorithm.chain
        result = replace(result, loss=objective.loss_of(result.task))
        if not result.is_finite:
            if algorithm.invalid_updates == "raise":
                raise FloatingPointError(
                    f"Client {result.client} ({result.num_samples} samples) returned NaN or infinite values. "
                    'Lower the learning rate or clip gradients, or give `invalid_updates="skip"`.'
                )
            return None
        # An asynchronous schedule looks at buffers when a result arrives, since it may train results ahead.
        if not schedule.asynchronous:
            self._run.server.watch(result)
        exchange.on_delivery(result.task, result.start)
        result = schedule.on_client_end(result) or result
        result = objective.on_client_end(result) or result
        result = replace(result, numbers=objective.numbers_up(result))
        if not schedule.asynchronous:
            objective.on_arrival(result.client, result.task.slot, is_used=True)
        return exchange.upload(replace(result, payload=self._run.books.payload))

    def _from_elsewhere(self, upload: Upload) -> ClientResult | None:
        """Do what the server does with a result that was uploaded elsewhere; return it if it is valid."""
        if upload.result is None:
            return None
        algorithm = self._run.algorithm
        self._run.server.note_changed(upload.changed)
        algorithm.chain.on_upload_elsewhere(upload.result)
        objective = algorithm.objective
        if objective.runs_where != "client":
            objective.on_client_end(upload.result)
            objective.on_arrival(upload.result.client, upload.task.slot, is_used=True)
        return upload.result

    # ---- 3. end ----

    def _end_parts(self) -> None:
        """Join the processes' reports, count the messages, and let all parts end the round."""
        run = self._run
        algorithm = run.algorithm
        joined = replace(self.report, reported=[], left_out=[], uploads=[], numbers=0)
        joined_scores: dict[int, float] = {}
        for report, scores in run.federation.gather((self.report, self._scores)):
            joined.reported += report.reported
            joined.left_out += report.left_out
            joined.uploads += report.uploads
            joined.numbers += report.numbers
            joined_scores.update(sorted(scores.items()))
        joined.reported.sort()
        joined.left_out.sort()
        self.report = algorithm.schedule.report or joined
        self._scores = joined_scores
        run.server.join_changing()
        run.books.count(self.report, run.server.changing)
        if algorithm.sampler.scored_at is not None:
            algorithm.sampler.take_scores(self._scores)
        for record in self.report.arrivals:
            if record.outcome in ("used", "rejected"):
                algorithm.objective.on_arrival(record.client, record.slot, is_used=record.outcome == "used")
        for part in run.parts:
            part.on_round_end()
        for part in run.parts:
            part.commit_vectors()

    @property
    def num_scored(self) -> int:
        """How many scores clients sent."""
        return self.report.scored + len(self._scores)
