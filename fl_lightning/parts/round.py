"""One round, from the draw of its clients to the model that users see.

FedAvg's, with four clients of ten::

    draw        the sampler draws clients 4, 0, 7 and 2, of which 2 drops out: three tasks
    play        Synchronous.play yields the tasks and loops over their results
                    _results          for each result that the loop asks for,
                        execute           the executor trains the next client, first 4:
                            received          it receives the server's model, as the exchanges let it
                        _end_client       and its ClientResult passes through the exchanges
                    the server adds the result to its mean
                after the last result, the server moves to the mean
    _end        messages are counted, and every part ends the round

A client trains when the schedule's loop asks for its result, not before: so one result at a time is in memory. A stack
of clients trains when the first of them is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fl_lightning.parts.messages import ClientResult, RoundReport, Task, Upload, same_values
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
    """A round of a run: :meth:`draw` its clients, then :meth:`play` its schedule.

    Args:
        run: The run.
        index: The round, from 0. The same seed and round give the same clients.
        full_work: Local epochs (or steps) of a client that does all.

    Attributes:
        tasks: The round's tasks, as far as they are known when it begins.
        report: What happened to its clients.
        published: The model that the user sees when it has been played, shape ``(size,)``.
    """

    published: Tensor

    def __init__(self, run: Run, index: int, full_work: int) -> None:
        self._run = run
        self._index = index
        self._full_work = full_work
        self.tasks: Sequence[Task] = ()
        self.report = RoundReport()

    # ---- 1. draw ----

    def draw(self, score: Score | None = None) -> None:
        """Draw the round's clients; those of an asynchronous schedule come as others finish.

        Args:
            score: Scores the clients that the sampler must know before it draws.

        Raises:
            ValueError: If a part cannot play the round.
        """
        run = self._run
        sampler = run.algorithm.sampler
        schedule = run.algorithm.schedule
        participation = run.algorithm.participation
        sizes = run.federation.sizes
        schedule.cohort_size = sampler.cohort_size(len(sizes))
        if schedule.asynchronous:
            return

        rng = numpy_generator(run.federation.seed, Stream.SAMPLING, self._index)
        chances = numpy_generator(run.federation.seed, Stream.PARTICIPATION, self._index)
        available = participation.reachable(self._index, len(sizes), chances)
        # Where data change, a client may have no samples in the round.
        available = available[sizes[available] > 0]
        known = self._score_first(sampler.clients_to_score(rng, available), score)
        drawn = sampler.checked_draw(len(sizes), rng, available)

        # Some of them drop out, or do a part of the work; the others get the schedule's slots.
        clients, work = participation.outcome(drawn, self._full_work, chances)
        slots = schedule.slots(len(clients), schedule.cohort_size, rng)
        tasks = []
        for slot, client, work_of_client in zip(slots, clients.tolist(), work, strict=False):
            num_samples = int(sizes[client])
            tasks.append(Task(slot, client, num_samples, work_of_client, self._index, is_known=client in known))
        self.tasks = tasks
        # Clients that drop out receive a model too: they have a task for the counts alone.
        addressed = list(tasks)
        for client in np.setdiff1d(drawn, clients).tolist():
            addressed.append(Task(len(addressed), client, int(sizes[client]), round=self._index))
        self.report.dropped = len(drawn) - len(clients)
        self.report.num_sent = len(addressed)
        self.report.receivers += [task for task in addressed if task.client not in known]

    def _score_first(self, clients: Iterable[int], score: Score | None) -> set[int]:
        """Let clients be scored before the draw, if the sampler asks for any.

        Returns:
            Those that have the model now from which they would train.
        """
        scored = [int(client) for client in clients]
        if score is None or not scored:
            return set()
        algorithm = self._run.algorithm
        schedule = algorithm.schedule
        sizes = self._run.federation.sizes
        # While models circulate, a client that is drawn trains another one.
        is_other_model = schedule.circulates and schedule.has_models_under_way
        # Then the model for the training is the client's second message of the round.
        message = int(is_other_model)
        score_tasks = [Task(k, k, int(sizes[k]), round=self._index, message=message) for k in scored]
        algorithm.sampler.take_scores(score(score_tasks))
        self.report.scored = len(scored)
        self.report.receivers += score_tasks
        for part in walk(algorithm.chain):
            part.commit_vectors()
        return set() if is_other_model else set(scored)

    # ---- 2. play ----

    def play(self, execute: Execute) -> None:
        """Play the round, up to :attr:`published`; call it on all processes.

        Args:
            execute: Trains tasks; see :attr:`Execute`.

        Raises:
            FloatingPointError: If a client or a part returns NaN or infinite values that cannot be left out.
            RuntimeError: If the schedule leaves results untaken, or the server's model was written to.
        """
        run = self._run
        schedule = run.algorithm.schedule
        server = run.server
        before = server.model
        # PyTorch counts in this number what is written into a tensor.
        version = before._version

        model = self.drive(schedule.play(self.tasks, server), execute)
        model = checked_vector(schedule, "play", model, server.model, finite=run.federation.layout.num_parameters)
        if before._version != version:
            raise RuntimeError("A part wrote to the server's model. Compute a new tensor, as in `model * 0.5`.")

        self._end()
        published = run.algorithm.chain.on_publish(server.keep_constant(model))
        # If it is the server's model, it is that very tensor: `Run.end_round` and checkpoints ask for that.
        self.published = server.model if same_values(published, server.model) else published

    def drive(self, play: Play, execute: Execute) -> Tensor:
        """Train the tasks that a schedule yields and send it their results, until it returns a model.

        What is sent are no results yet, but an iterator: a client trains when the schedule asks it for the next one.
        """
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
        """Yield this process's results as the server sees them; invalid ones are left out.

        A client that does not answer has dropped out.
        """
        report = self.report
        expected = sum(1 for task in tasks if not task.phase)
        before = len(report.uploads)
        for trained in execute(tasks):
            task = trained.task
            if isinstance(trained, Upload):
                result = self._from_elsewhere(trained)
            elif task.phase:
                result = self._further(trained)
            else:
                result = self._end_client(trained)
            # No result is held here while the next client trains.
            del trained
            if not task.phase:
                report.note(task, result, self._run.server.left_out_payload)
            if result is not None:
                yield result
            del result
        answered = len(report.uploads) - before
        # Several processes have clients of their own here, which always answer.
        if self._run.federation.num_ranks == 1:
            report.dropped += expected - answered

    def received(self, task: Task) -> Tensor:
        """Return what a client receives for a task, with what it keeps of its own, shape ``(size,)``.

        This is the model at which the client is scored, to which proximal terms pull, and from which its update is
        taken. Ask on the process that has the client's vectors. The tensor is not to be written to.
        """
        return self._run.algorithm.chain.download(task.sending, self.sent(task))

    def sent(self, task: Task) -> Tensor:
        """Return the model that the server sends for a task, shape ``(size,)``; not to be written to."""
        schedule = self._run.algorithm.schedule
        server = self._run.server
        return checked_vector(schedule, "sent", schedule.sent(task, server), server.model)

    def _end_client(self, result: ClientResult) -> ClientResult | None:
        """Do what a client does after its training; return its result as it leaves the exchange, if it is valid."""
        algorithm = self._run.algorithm
        result = replace(result, loss=algorithm.objective.loss_of(result.task))
        if not result.is_finite:
            if algorithm.invalid_updates == "raise":
                raise FloatingPointError(
                    f"Client {result.client} ({result.num_samples} samples) returned NaN or infinite values. "
                    'Lower the learning rate or clip gradients, or give `invalid_updates="skip"`.'
                )
            return None
        result = algorithm.optimizers.take(result)
        # An asynchronous schedule looks at buffers when a result arrives, since it may train results ahead.
        if not algorithm.schedule.asynchronous:
            self._run.server.look_at_buffers(result)
        result = self._call_parts(result)
        payload = self._run.books.parameters_payload(result.task)
        return algorithm.chain.upload(replace(result, payload=payload))

    def _call_parts(self, result: ClientResult) -> ClientResult:
        """Let the exchanges, the schedule and the objective see a trained client's result, and return it as they do."""
        algorithm = self._run.algorithm
        schedule = algorithm.schedule
        objective = algorithm.objective
        algorithm.chain.on_delivery(result.task, result.received)
        result = schedule.on_client_end(result) or result
        result = objective.on_client_end(result) or result
        result = replace(result, numbers=objective.numbers_up(result))
        if not schedule.asynchronous:
            objective.on_arrival(result.client, result.task.slot, is_used=True)
        return result

    # ---- further trainings, clients on other machines, scores ----

    def _further(self, result: ClientResult) -> ClientResult | None:
        """Return the result of a further training, which stays on its client; ``None`` if it is invalid."""
        algorithm = self._run.algorithm
        if not result.is_finite:
            return None
        result = algorithm.optimizers.take(result)
        if result.task.message:
            algorithm.chain.on_delivery(result.task, result.received)
        algorithm.schedule.on_client_end(result)
        return result

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

    def received_before_draw(self, task: Task) -> Tensor:
        """Return what a client receives that is scored before the draw, as :meth:`received` does."""
        algorithm = self._run.algorithm
        sent = algorithm.schedule.model_of(task.client, self._run.server.model)
        return algorithm.chain.download(task.sending, sent)

    # ---- 3. end ----

    def _end(self) -> None:
        """Join the processes' reports, count the messages, and let all parts end the round."""
        run = self._run
        algorithm = run.algorithm
        joined = self.report.joined(run.federation.gather(self.report))
        self.report = algorithm.schedule.report or joined
        run.server.join_changing()
        run.books.count(self.report, run.server.changing)
        if algorithm.sampler.scored_at is not None:
            algorithm.sampler.take_scores(joined.scores)
        for record in self.report.arrivals:
            if record.outcome in ("used", "rejected"):
                algorithm.objective.on_arrival(record.client, record.slot, is_used=record.outcome == "used")
        for part in run.parts:
            part.on_round_end()
        for part in run.parts:
            part.commit_vectors()
