"""A federated algorithm: six parts, a round as a transaction, and what a checkpoint holds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from torch import Tensor

from fl_lightning.checks import check, check_fields, checked_vector
from fl_lightning.parts.aggregation import Aggregation, WeightedMean, aggregation_for
from fl_lightning.parts.exchange import BufferExchange, Buffers, Chain, Exchange
from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.messages import ClientResult, Payload, RoundReport, Task, Traffic, same_values
from fl_lightning.parts.objectives import Correction, LocalObjective
from fl_lightning.parts.part import Part, walk
from fl_lightning.parts.sampling import ClientSampler, Participation, UniformSampler
from fl_lightning.parts.schedules import Play, Schedule, Synchronous
from fl_lightning.parts.server import Mixing, Server, ServerOptimizer
from fl_lightning.seeding import Stream, numpy_generator

#: Trains tasks and yields this process's results as they come.
Execute = Callable[[Sequence[Task]], Iterable[ClientResult]]
#: Returns the scores of clients before the draw, by client; called on all processes.
Score = Callable[[Sequence[Task]], Mapping[int, float]]
InvalidUpdates = Literal["skip", "raise"]


@dataclass(eq=False)
class Algorithm:
    """Six parts that answer six questions; the defaults make FedAvg.

    A round is a transaction: :meth:`start_round`, :meth:`play`, then :meth:`end_round`. Broken off anywhere before,
    :meth:`roll_back` leaves no trace of it.

    Args:
        sampler: Who trains?
        schedule: From which model, and when does the server act?
        objective: What does a client minimise?
        exchange: What travels? One exchange or several, from the client to the server.
        aggregation: How are results merged?
        server_optimizer: How does the server move? It is the argument ``server`` of :class:`~fl_lightning.Federated`.
        participation: Clients that cannot be reached, drop out or do part of the work.
        buffers: How buffers are exchanged; see :class:`BufferExchange`.
        invalid_updates: Whether clients with NaN or infinite values are left out or end the fit.

    Attributes:
        server: The server's model, and how it moves; once a fit has begun.
        federation: The run; once a fit has begun.
        tasks: The tasks of the round under way, as far as they are known when it begins.
        report: What happened to the clients of the last round.
        traffic: Everything that was sent since the fit began.

    Raises:
        TypeError: If a part has the wrong type.
        ValueError: If parts cannot be combined.
    """

    sampler: ClientSampler = field(default_factory=lambda: UniformSampler(0.1))
    schedule: Schedule = field(default_factory=Synchronous)
    objective: LocalObjective = field(default_factory=LocalObjective)
    exchange: Any = ()
    aggregation: Aggregation = field(default_factory=WeightedMean)
    server_optimizer: ServerOptimizer = field(default_factory=Mixing)
    participation: Participation = field(default_factory=Participation)
    buffers: Buffers = "average"
    invalid_updates: InvalidUpdates = "skip"
    federation: Federation = field(init=False)
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        check_fields(self)
        check("`exchange`", self.exchange, Exchange | Sequence[Exchange])
        given = self.exchange if isinstance(self.exchange, (list, tuple)) else [self.exchange]
        self.exchange = Chain([BufferExchange(self.buffers), *given])
        self.aggregation = aggregation_for(self.exchange.members, self.aggregation)
        self._check_parts()
        self.traffic, self.report = Traffic(), RoundReport()
        self._has_begun = False
        #: The model that the module holds since the last round's end, shape ``(size,)``, rounded to its types.
        self.shown: Tensor | None = None
        #: The state of a checkpoint, until the fit begins.
        self.restored: Mapping[str, Any] | None = None
        self.tasks: Sequence[Task] = ()
        # whether the module was given another model than the server's at the last round's end
        self._shows_other = False
        self._before: tuple[Any, ...] | None = None  # the own state at the start of the round under way

    def _check_parts(self) -> None:
        """Raise ``ValueError`` if parts cannot be combined."""
        for reason in self._conflicts():
            raise ValueError(reason)

    def _conflicts(self) -> Iterator[str]:
        schedule, objective = self.schedule, self.objective
        if schedule.asynchronous and any(vars(self.participation).values()):
            yield "`participation` needs rounds. For clients that come and go give `VirtualClock(online=, dropout=)`."
        if objective.starts_from_server and not schedule.starts_from_server:
            yield f"`objective` cannot be {objective!r} with {schedule!r}: its clients start from the server's model."
        for part in walk(*self.parts.values()):
            yield from part.check_with(self) or ()  # a user's method may raise its own error

    @property
    def parts(self) -> dict[str, Part]:
        """All parts by name, in the order in which they start a fit."""
        names = ("exchange", "sampler", "schedule", "objective", "aggregation", "server_optimizer")
        return {name: getattr(self, name) for name in names}

    @property
    def keeps_client_vectors(self) -> bool:
        """Whether clients keep vectors between rounds; each client then belongs to one process."""
        return any(part.client_vectors and not part.federation.replicates for part in self._all)

    @property
    def needs_summed_lr(self) -> bool:
        """Whether a part needs :attr:`ClientResult.summed_lr`."""
        return self.objective.needs_summed_lr or self.aggregation.needs_summed_lr

    @property
    def aggregated(self) -> bool:
        """Whether the model that was shown last is one that the server aggregated, not the first of all."""
        return self.server.moves > 0 and self.schedule.shows_aggregate

    @property
    def personal_is_current(self) -> bool:
        """Whether the clients' models are those of the last round; see :attr:`Part.personal_is_current`."""
        return all(part.personal_is_current for part in self._all)

    @property
    def models_sent(self) -> int:
        """Models sent up and down since the fit began."""
        return self.traffic.models_down + self.traffic.models_up

    def replace_sampler(self, sampler: Any) -> None:
        """Draw clients with another sampler from the next round on.

        Raises:
            TypeError: If it is no :class:`ClientSampler`.
            ValueError: If it cannot be combined with another part.
        """
        check("`sampler`", sampler, ClientSampler)
        before, self.sampler = self.sampler, sampler
        try:
            self._check_parts()
        except ValueError:
            self.sampler = before
            raise
        if self._has_begun:
            sampler.begin_fit(replace(self.federation, replicates=True))
            self._all = walk(*self.parts.values())

    # ---- a fit ----

    def begin_fit(self, federation: Federation, *, fresh: bool) -> None:
        """Start a fit from the module's weights, or go on from a checkpoint or from an earlier fit.

        Args:
            federation: The run.
            fresh: Whether this is the first round of all.

        Raises:
            ValueError: If the state belongs to a module of another size or to other parts, or an exchange cannot begin
                anew with the model that an earlier fit left.
        """
        state, self.restored = self.restored, None
        known = self.shown is not None and same_values(self.shown, federation.model)
        goes_on = state is None and self._has_begun and not fresh  # an earlier fit
        self.shown = federation.model
        if state is not None:
            self.shown = (state["model"] if state["shown"] is None else state["shown"]).to(federation.model)
        if goes_on:
            state = self.state_dict()
        elif state is None and known:
            self.exchange.check_another_fit()
        names, sizes = list(federation.names), (len(federation.model), *federation.lengths)
        if state is not None and (state["names"] != names or (len(state["model"]), *state["lengths"]) != sizes):
            raise ValueError(
                f"The module must have the trained and frozen tensors of the server's model, {len(state['model'])} "
                f"values in all, got others, {len(federation.model)} values. Go on with the same module."
            )
        if state is not None and goes_on and not known:  # with other weights than it left
            if self.schedule.has_models_under_way:
                warnings.warn(
                    "The module holds other weights than the last fit left, but models are under way, and the fit goes "
                    "on with these. To begin from the module's weights give the Trainer a new callback.",
                    stacklevel=2,
                )
            else:
                state = {**state, "model": federation.model, "shows_other": False}
        first = federation.model if state is None else state["first"].to(federation.model)
        self._begin_parts(replace(federation, model=first))
        self.server, self.traffic, self.report = Server(self, self.federation), Traffic(), RoundReport()
        self._shows_other, self._before, self._has_begun = False, None, True
        vars(self).pop("payload", None)
        if state is not None:
            self._load(state)
        keeper = next((part for part in self._all if part.client_vectors), None)
        if self.schedule.repeats_clients and keeper is not None:
            raise ValueError(f"`history` lets a client train on two models at once: {keeper!r} cannot keep its vector.")

    def _begin_parts(self, federation: Federation) -> None:
        """Let all parts start a fit: exchanges first, since they decide which parameters travel."""
        circulates = self.schedule.circulates and federation.num_ranks > 1
        federation = replace(federation, replicates=circulates)
        exchanges = walk(self.exchange)
        for part in exchanges:
            part.begin_fit(federation)
        names = list(federation.layout.trained)
        for name in federation.names:
            keepers = [member for member in self.exchange.members if member.keeps(name)]
            if len(keepers) > 1:
                raise ValueError(
                    f"`exchange` must keep a tensor on its client once, but {keepers} all keep {name!r}. Leave out all "
                    "of them but one."
                )
        self._untrained = frozenset(self.objective.untrained(federation))
        traveling = [name for name in names if self._travels(name)]
        if names and not traveling and not self.exchange.shares_nothing:
            raise ValueError(
                f"Some parameters must be learned together, but with {self.objective!r} and the exchanges "
                f"{self.exchange.members[1:]} none travels. To let each client train alone give "
                '`PersonalParameters("*")`.'
            )
        self.federation = replace(federation, traveling=None if len(traveling) == len(names) else traveling)
        self._all = walk(*self.parts.values())
        # results are merged, and these parts called, on all processes alike, with what belongs to them alone
        mine = [self.sampler, self.server_optimizer, *([] if self.aggregation.streams else [self.aggregation])]
        elsewhere = set(map(id, walk(self.exchange, self.schedule, self.objective)))
        alike = {id(part) for part in walk(*mine)} - elsewhere | set(map(id, mine))
        begun = set(map(id, exchanges))
        for part in self._all:
            if id(part) in begun:
                part.federation = self.federation
            else:
                part.begin_fit(replace(self.federation, replicates=circulates or id(part) in alike))

    def state_dict(self) -> dict[str, Any]:
        """Return the state at the last round's end, or one that no fit has taken yet; call it on all processes."""
        if not self._has_begun or self.restored is not None:
            return dict(self.restored or {})
        (model, moves, changing), traffic, _, shows_other = self._own_state() if self._before is None else self._before
        assert self.shown is not None
        return {
            "model": model,
            "shown": None if same_values(self.shown, model) else self.shown,
            "first": self.federation.model,
            "names": list(self.federation.names),
            "lengths": list(self.federation.lengths),
            "moves": moves,
            "changing": sorted(changing),
            "traffic": vars(traffic).copy(),
            "shows_other": shows_other,
            "parts": {self._key(place): part.state_dict() for place, part in enumerate(self._all)},
        }

    def _own_state(self) -> tuple[Any, ...]:
        return self.server.state, replace(self.traffic), self.report, self._shows_other

    def _key(self, place: int) -> str:
        return f"{place}-{type(self._all[place]).__name__}"

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep a checkpoint's state until the fit begins."""
        self.restored = state

    def _load(self, state: Mapping[str, Any]) -> None:
        keys = [self._key(place) for place in range(len(self._all))]
        if list(state["parts"]) != keys:
            before, now = (", ".join(key.partition("-")[2] for key in each) for each in (state["parts"], keys))
            raise ValueError(f"The checkpoint has the parts {before}, this run {now}. Use the same parts.")
        self.server.state = state["model"].to(self.server.model), state["moves"], frozenset(state["changing"])
        self.traffic, self._shows_other = Traffic(**state["traffic"]), state["shows_other"]
        for key, part in zip(keys, self._all, strict=True):
            part.load_state_dict(state["parts"][key])

    def adopt(self, model: Tensor) -> None:
        """Take what was written into the module between two rounds as the server's model, shape ``(size,)``.

        Raises:
            RuntimeError: If models of this fit circulate, or the module held another model than the server's.
        """
        if self.schedule.has_models_under_way or self._shows_other:
            raise RuntimeError(
                "The module's weights were changed between two rounds, but clients work on earlier models, "
                "or the module holds another model than the server's. Change them after an aggregation."
            )
        self.server.model = model

    # ---- a round ----

    def start_round(self, index: int, full_work: int = 1, score: Score | None = None) -> None:
        """Draw the clients of a round, as far as they are known when it begins.

        Args:
            index: The round, from 0. The same seed and round give the same clients.
            full_work: Local epochs (or steps) of a client that does all.
            score: Scores the clients that the sampler must know before it draws.

        Raises:
            ValueError: If a part cannot play the round.
        """
        self._before = self._own_state()
        self.report, self.tasks, self._scores = RoundReport(), (), dict[int, float]()
        for part in self._all:
            part.begin_round(index)
        self.schedule.cohort_size = self.sampler.cohort_size(self.federation.num_clients)
        if not self.schedule.asynchronous:
            self.tasks = self._draw_tasks(index, full_work, score)

    def _draw_tasks(self, index: int, full_work: int, score: Score | None) -> list[Task]:
        """Return the round's tasks, without those of clients that drop out."""
        sizes, seed, sampler = self.federation.sizes, self.federation.seed, self.sampler
        rng, chances = (numpy_generator(seed, stream, index) for stream in (Stream.SAMPLING, Stream.PARTICIPATION))
        available = self.participation.reachable(index, len(sizes), chances)
        to_score = [int(client) for client in sampler.clients_to_score(rng, available)]
        # the models that clients are about to train on are other ones while models circulate
        is_other = self.schedule.circulates and self.schedule.has_models_under_way
        if score is not None and to_score:
            tasks = [Task(k, k, int(sizes[k]), round=index, message=int(is_other)) for k in to_score]
            sampler.take_scores(score(tasks))
            self.report.scored = len(to_score)
            for part in walk(self.exchange):
                for vectors in part.client_vectors.values():
                    vectors.commit()
        drawn = np.asarray(sampler.draw(len(sizes), rng, available)).reshape(-1)
        if len(drawn) and (len(np.unique(drawn)) < len(drawn) or not np.isin(drawn, available).all()):
            raise ValueError(f"`{type(sampler).__name__}.draw` must return distinct `available` clients, got {drawn}.")
        drawn = drawn.astype(np.int64)
        known = set(to_score) & set(drawn.tolist()) if self.report.scored and not is_other else set()
        self.report.known = len(known)
        drawn = drawn if sampler.draws_in_random_order else rng.permutation(drawn)
        clients, work = self.participation.outcome(drawn, full_work, chances)
        slots = self.schedule.slots(len(clients), self.schedule.cohort_size, rng)
        self.report.dropped, self.report.sent = len(drawn) - len(clients), len(drawn) - len(clients)
        chosen = zip(slots, clients.tolist(), work, strict=False)
        tasks = [Task(slot, k, int(sizes[k]), part, index, is_known=k in known) for slot, k, part in chosen]
        self.report.sent += len(tasks)
        return tasks

    def play(self, execute: Execute) -> Tensor:
        """Play the round and return the model that the user sees, shape ``(size,)``; call it on all processes.

        Args:
            execute: Trains tasks; see :attr:`Execute`.

        Raises:
            FloatingPointError: If a client or a part returns NaN or infinite values that cannot be left out.
            RuntimeError: If the schedule leaves results untaken, or the server's model was written to.
        """
        server, schedule, n = self.server, self.schedule, self.federation.num_parameters
        model, version = server.model, server.model._version
        shown = self._drive(schedule.play(self.tasks, server), execute)
        shown = checked_vector(schedule, "play", shown, server.model, finite=n)
        if model._version != version:
            raise RuntimeError("A part wrote to the server's model. Compute a new tensor, as in `model * 0.5`.")
        self._end_parts()
        published = self.exchange.on_publish(server.keep_constant(shown))
        self._shows_other = not same_values(published, server.model)
        return published

    def finish(self, index: int, execute: Execute) -> None:
        """Make clients' models of the last round, at a fit's end; call it on all processes.

        Of all that changes, only the schedule's state and the traffic stay: a further round is as it would be without.

        Args:
            index: The last round, from 0.
            execute: Trains tasks; see :attr:`Execute`.
        """
        self._before, report = self._own_state(), self.report
        self.report = RoundReport()
        for part in self._all:
            part.begin_round(index)
        self._drive(self.schedule.finish(self.server), execute)
        self._count()
        for vectors in self.schedule.client_vectors.values():
            vectors.commit()
        self.schedule.end_round()
        for part in self._all:
            part.roll_back()
        self.report, self._before = report, None

    def _drive(self, play: Play, execute: Execute) -> Any:
        """Let the tasks that a schedule yields be trained, and return what it returns."""
        results: Iterator[ClientResult] = iter(())
        try:
            wanted = next(play)
            while True:
                results = self._results(wanted, execute)
                wanted = play.send(results)
                self._check_taken(results)
        except StopIteration as end:
            shown = end.value
        self._check_taken(results)
        return shown

    def _check_taken(self, results: Iterator[ClientResult]) -> None:
        if next(results, None) is not None:
            name = type(self.schedule).__name__
            raise RuntimeError(f"`{name}.play` must take all results of the tasks that it yields, but left some.")

    def _end_parts(self) -> None:
        """Join the processes' reports, and let all parts end the round."""
        shares = self.federation.gather((self.report, self._scores))
        self.report = self.schedule.report or replace(
            self.report,
            reported=sorted(client for report, _ in shares for client in report.reported),
            left_out=sorted(client for report, _ in shares for client in report.left_out),
            uploads=[payload for report, _ in shares for payload in report.uploads],
            numbers=sum(report.numbers for report, _ in shares),
        )
        self.server.join_changing()
        self._count()
        self._scores = {client: score for _, scores in shares for client, score in sorted(scores.items())}
        if self.sampler.scored_at is not None:
            self.sampler.take_scores(self._scores)
        for part in self._all:
            part.on_round_end()
        for part in self._all:
            for vectors in part.client_vectors.values():
                vectors.commit()

    def end_round(self, shown: Tensor) -> None:
        """Keep what the round changed; from now on it counts as done.

        Args:
            shown: The model that the module holds, shape ``(size,)``.
        """
        for part in self._all:
            part.end_round()
        self.shown, self._before = shown, None

    def roll_back(self) -> None:
        """Return to the state at the start of the round under way, if there is one."""
        if self._before is not None:
            self.server.state, self.traffic, self.report, self._shows_other = self._before
            for part in self._all:
                part.roll_back()
            self._before = None

    # ---- clients ----

    def owner(self, task: Task, num_ranks: int) -> int | None:
        """Return the process to which a task belongs because of what is kept there; ``None`` if any will do."""
        if self.schedule.circulates:
            return task.slot % num_ranks
        return task.client % num_ranks if num_ranks > 1 and self.keeps_client_vectors else None

    def received(self, task: Task) -> Tensor:
        """Return what a client receives for a task, with what it keeps of its own, shape ``(size,)``.

        This is the model at which the client is scored, to which proximal terms pull, and from which its update is
        taken. Ask on the process that has the client's vectors. The tensor is not to be written to.
        """
        sent = checked_vector(self.schedule, "sent", self.schedule.sent(task, self.server), self.server.model)
        return self.exchange.download(task.sending, sent)

    def received_before_draw(self, task: Task) -> Tensor:
        """Return what a client receives that is scored before the draw, as :meth:`received` does."""
        sent = self.schedule.model_of(task.client, self.server.model)
        return self.exchange.download(task.sending, sent)

    def start(self, task: Task, received: Tensor) -> Tensor:
        """Return the model from which a task trains, shape ``(size,)``; not to be written to.

        Args:
            task: The task.
            received: What :meth:`received` returned for it.
        """
        return checked_vector(self.schedule, "start", self.schedule.start(task, received), received)

    def correction(self, client: LocalClient) -> Correction | None:
        """Return what is added to the loss of a client that begins; ``None`` for nothing."""
        return self.schedule.correction(client) if client.task.phase else self.objective.correction(client)

    def batches_per_step(self, task: Task) -> int:
        """Return how many batches the task's client takes for one optimizer step."""
        return 1 if task.phase else self.objective.batches_per_step

    def _results(self, tasks: Sequence[Task], execute: Execute) -> Iterator[ClientResult]:
        """Yield this process's results as they leave the exchange; invalid ones are left out."""
        counts = not self.schedule.asynchronous
        for result in execute(tasks):
            if result.task.phase:  # it stays on the client
                if result.is_finite:
                    if result.task.message:
                        self.exchange.on_delivery(result.task, result.start)
                    self.schedule.on_client_end(result)
                    yield result
                continue
            result = replace(result, loss=self.objective.loss_of(result.task))
            if not result.is_finite:
                if self.invalid_updates == "raise":
                    raise FloatingPointError(
                        f"Client {result.client} ({result.num_samples} samples) handed back NaN or infinite values. "
                        'Lower the learning rate or clip gradients, or give `invalid_updates="skip"`.'
                    )
                self.report.left_out.append(result.client)
                self.report.uploads.append(self.server.left_out_payload)
                continue
            if counts:
                self.server.watch(result)
            self.exchange.on_delivery(result.task, result.start)
            result = self.schedule.on_client_end(result) or result
            result = self.objective.on_client_end(result) or result
            self.report.numbers += self.objective.numbers_up(result)
            uploaded = self.exchange.upload(replace(result, payload=self.payload))
            self.report.reported.append(result.client)
            self.report.uploads.append(uploaded.payload)
            if result.score is not None:
                self._scores[result.client] = result.score
            yield uploaded

    # ---- traffic and logs ----

    @cached_property
    def payload(self) -> Payload:
        """The message with all parameters that travel, uncompressed."""
        return self._message(range(len(self.federation.lengths)))

    def _message(self, places: Iterable[int]) -> Payload:
        """Return the message of those of the model's tensors that travel."""
        names = self.federation.names
        return self.federation.layout.payload(place for place in places if self._travels(names[place]))

    def _travels(self, name: str) -> bool:
        """Return whether a parameter or buffer is sent at all."""
        return name not in self._untrained and self.exchange.travels(name)

    def _count(self) -> None:
        """Count a round's messages: the models and what goes with them, and the scores before the draw."""
        report, traffic, scored, names = self.report, self.traffic, self.report.scored, list(self.federation.names)
        changing = self._message(names.index(name) for name in sorted(self.server.changing, key=names.index))
        vectors, sent, reported = self.objective.vectors_sent, report.sent, len(report.uploads)
        models, further = sent + scored - report.known, self.schedule.further_models(sent)
        if self.payload.values:  # else each client trains alone
            traffic.models_down += models + (vectors - 1) * sent + further
            traffic.models_up += vectors * reported
        traffic.send_down(self.exchange.payload_down(self.payload), models + further)
        traffic.send_down(self.payload, (vectors - 1) * sent)
        traffic.send_down(changing, models + further)
        for upload in report.uploads:
            traffic.send_up(upload)
        traffic.send_up(self.payload, (vectors - 1) * reported)
        traffic.send_up(changing, reported)
        # besides the vectors
        numbers = (self.sampler.scored_at is not None) + self.objective.sends_loss + self.schedule.sends_choice
        number = Payload(1, self.federation.layout.payload([0]).bits_per_value)
        traffic.send_up(number, numbers * reported + scored + report.numbers)
        traffic.send_down(number, self.objective.numbers_down * sent)

    def values(self) -> dict[str, float]:
        """Return the values that the round logs.

        ``fed/clients`` reported and were used, ``fed/dropped`` received a model and did not report, ``fed/left_out``
        handed back invalid values; ``fed/aggregations`` and ``fed/models_sent`` (up and down) count from the start;
        ``fed/aggregated`` is 1 if the module holds a model that the server aggregated, and 0 otherwise.
        """
        joined: dict[str, float] = {
            "fed/clients": len(self.report.reported),
            "fed/dropped": self.report.dropped,
            "fed/left_out": len(self.report.left_out),
            "fed/aggregations": self.server.moves,
            "fed/aggregated": float(self.aggregated),
            "fed/models_sent": self.models_sent,
        }
        if self.sampler.sends_scores:
            joined["fed/scored"] = self.report.scored + len(self._scores)
        for part in self._all:
            joined |= part.values()
        return joined

    def __repr__(self) -> str:
        return f"Algorithm({', '.join(f'{name}={part!r}' for name, part in self.parts.items())})"
