"""A fit of an algorithm: the server's model, the states of all parts, and what was sent."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fl_lightning.parts.aggregations.means import MeanAggregation
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.kept import by_key
from fl_lightning.parts.messages import RoundReport, Task, same_values
from fl_lightning.parts.part import Part, is_among, walk
from fl_lightning.parts.round import Execute, Round
from fl_lightning.parts.server import Server
from fl_lightning.parts.traffic import Books

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm
    from fl_lightning.parts.samplers.base import ClientSampler


class Run:
    """A fit of an algorithm. It begins by :meth:`begin`, :meth:`resume` or :meth:`go_on`.

    A :class:`Round` is a transaction, which :meth:`end_round` completes. If it breaks off anywhere before,
    :meth:`put_back` leaves no trace of it; see :class:`~fl_lightning.parts.kept.Kept`.

    There are three models. ``server.model`` is what the server moves. ``round.published`` is what it shows of it: the
    same tensor in FedAvg. ``shown`` is the published model as it is read back from the module: rounded to its types,
    with what hooks have written.

    Attributes:
        algorithm: The algorithm.
        federation: The clients, the processes and the model's layout.
        parts: All parts, in the order in which they start a fit.
        server: The server's model, and how it moves.
        books: The counts of messages.
        shown: The model that the module holds since the last round's end, shape ``(size,)``, rounded to its types.
        round: The round under way, or the last one.
    """

    def __init__(self, algorithm: Algorithm, federation: Federation) -> None:
        self.algorithm = algorithm
        self._untrained = frozenset(algorithm.objective.untrained(federation))
        self._begin_parts(federation)
        self.books = Books(algorithm, self.federation, self._travels)
        self.server = Server(
            self.federation,
            algorithm.chain,
            algorithm.aggregation,
            algorithm.server_optimizer,
            self.books.left_out_payload,
        )
        self.shown: Tensor = federation.model
        # Before the first round there is an empty one, of which readers may ask.
        self.round = Round(self, 0, 0)
        # Whether the module was given another model than the server's at the last round's end.
        self._shows_other = False
        self.keep()

    # ---- three beginnings ----

    @classmethod
    def begin(cls, algorithm: Algorithm, federation: Federation, earlier: Run | None = None) -> Run:
        """Begin with the first round of all, from the module's weights.

        Args:
            algorithm: The algorithm.
            federation: The run's clients, processes and first model.
            earlier: The fit before, if there was one.

        Raises:
            ValueError: If an exchange cannot begin again with the model that the fit before left.
        """
        if earlier is not None and same_values(earlier.shown, federation.model):
            algorithm.chain.check_another_fit()
        return cls(algorithm, federation)

    @classmethod
    def resume(cls, algorithm: Algorithm, federation: Federation, state: Mapping[str, Any]) -> Run:
        """Go on from a checkpoint's state, as :meth:`state_dict` returned it.

        Raises:
            ValueError: If the state belongs to a module of another size or to other parts.
        """
        _check_module(state, federation)
        shown = state["server"]["model"] if state["shown"] is None else state["shown"]
        run = cls(algorithm, replace(federation, model=state["first"].to(federation.model)))
        run.shown = shown.to(federation.model)
        run._shows_other = state["shows_other"]
        run.server.load_state_dict(state["server"])
        run.server.model = run.server.model.to(federation.model.dtype)
        run.books.load_state_dict(state["books"])
        parts = by_key(run.parts)
        if list(state["parts"]) != list(parts):
            before = _classes_in(state["parts"])
            now = _classes_in(parts)
            raise ValueError(f"The checkpoint has the parts {before}, this run {now}. Use the same parts.")
        for key, part in parts.items():
            part.load_state_dict(state["parts"][key])
        run.keep()
        return run

    @classmethod
    def go_on(cls, earlier: Run, federation: Federation) -> Run:
        """Go on from an earlier fit, with the weights that the module has now.

        Raises:
            ValueError: If the module has another size.
        """
        # What was assigned since the last round counts.
        earlier.keep()
        state = earlier.state_dict()
        _check_module(state, federation)
        if not same_values(earlier.shown, federation.model):
            if earlier.algorithm.schedule.has_models_under_way:
                warnings.warn(
                    "The module holds other weights than the last fit left, but models are under way, and the fit goes "
                    "on with these. To begin from the module's weights give the Trainer a new callback.",
                    stacklevel=2,
                )
            else:
                state["server"]["model"] = federation.model
                state["shows_other"] = False
        run = cls.resume(earlier.algorithm, federation, state)
        run.shown = federation.model
        run.keep()
        return run

    def _begin_parts(self, federation: Federation) -> None:
        """Let all parts start a fit: exchanges first, since they decide which parameters travel."""
        algorithm = self.algorithm
        exchange = algorithm.chain
        circulates = algorithm.schedule.circulates and federation.num_ranks > 1
        federation = replace(federation, replicates=circulates)
        exchanges = walk(exchange)
        for part in exchanges:
            part.begin_fit(federation)
        for name in federation.layout.names:
            keepers = [member for member in exchange.members if member.keeps(name)]
            if len(keepers) > 1:
                raise ValueError(
                    f"`exchange` must keep a tensor on its client once, but {keepers} all keep {name!r}. Leave out all "
                    "of them but one."
                )
        names = list(federation.layout.trained)
        traveling = [name for name in names if self._travels(name)]
        if not traveling and not exchange.shares_nothing:
            raise ValueError(
                f"Some parameters must be learned together, but with {algorithm.objective!r} and the exchanges "
                f"{exchange.members[1:]} none travels. To let each client train alone give "
                '`PersonalParameters("*")`.'
            )
        self.federation = replace(
            federation,
            traveling=None if len(traveling) == len(names) else traveling,
            message_bits=self._message_bits,
        )
        self.parts = walk(*algorithm.parts.values())

        parts_on_all_processes = self._parts_on_all_processes()
        for part in self.parts:
            if is_among(part, exchanges):
                # It has begun the fit above, before it was known what travels.
                part.federation = self.federation
            else:
                replicates = circulates or is_among(part, parts_on_all_processes)
                part.begin_fit(replace(self.federation, replicates=replicates))
        if algorithm.schedule.repeats_clients:
            for part in self.parts:
                if part.client_vectors:
                    raise ValueError(
                        f"`history` lets a client train on two models at once: {part!r} cannot keep its vector."
                    )

    def _parts_on_all_processes(self) -> list[Part]:
        """Return the parts that are called on all processes alike, so that all of them keep these parts' vectors.

        These are the sampler, the server optimizer, an aggregation that needs all results at once, and the parts that
        only these have.
        """
        algorithm = self.algorithm
        called: list[Part] = [algorithm.sampler, algorithm.server_optimizer]
        if not isinstance(algorithm.aggregation, MeanAggregation):
            called.append(algorithm.aggregation)
        with_clients = walk(algorithm.chain, algorithm.schedule, algorithm.objective)
        found = list(called)
        for part in walk(*called):
            if not is_among(part, with_clients):
                found.append(part)
        return found

    def _message_bits(self) -> list[tuple[int, int]]:
        """Return the bits of a message to each client and of its answer, once the exchanges have begun."""
        return Books(self.algorithm, self.federation, self._travels).message_bits()

    def _travels(self, name: str) -> bool:
        """Return whether a parameter or buffer is sent at all."""
        return name not in self._untrained and self.algorithm.chain.travels(name)

    # ---- between rounds ----

    def adopt(self, model: Tensor) -> None:
        """Take what was written into the module between two rounds as the server's model, shape ``(size,)``.

        Raises:
            RuntimeError: If models of this fit circulate, or the module held another model than the server's.
        """
        if self.algorithm.schedule.has_models_under_way or self._shows_other:
            raise RuntimeError(
                "The module's weights were changed between two rounds, but clients work on earlier models, "
                "or the module holds another model than the server's. Change them after an aggregation."
            )
        self.server.model = model
        self.shown = model

    def replace_sampler(self, sampler: ClientSampler) -> None:
        """Let another sampler of the algorithm begin."""
        sampler.begin_fit(replace(self.federation, replicates=True))
        self.parts = walk(*self.algorithm.parts.values())

    # ---- the boundary between two rounds ----

    def keep(self) -> None:
        """Make the present state the boundary's."""
        self._kept = (self.shown, self.round, self._shows_other)
        for each in (self.server, self.books, *self.parts):
            each.keep()

    @property
    def kept_shown(self) -> Tensor:
        """The model that the module held at the boundary, shape ``(size,)``."""
        shown, _, _ = self._kept
        return shown

    def put_back(self) -> None:
        """Return to the boundary's state."""
        self.shown, self.round, self._shows_other = self._kept
        for each in (self.server, self.books, *self.parts):
            each.put_back()

    def state_dict(self) -> dict[str, Any]:
        """Return the boundary's state; call it on all processes."""
        shown, _, shows_other = self._kept
        layout = self.federation.layout
        server = self.server.state_dict()
        return {
            "server": server,
            "books": self.books.state_dict(),
            "shown": None if same_values(shown, server["model"]) else shown,
            "shows_other": shows_other,
            "first": self.federation.model,
            "names": list(layout.names),
            "lengths": list(layout.lengths[: layout.num_trained]),
            "parts": {key: part.state_dict() for key, part in by_key(self.parts).items()},
        }

    # ---- rounds ----

    def begin_round(self, index: int, full_work: int = 0) -> Round:
        """Begin a round, and let all parts begin it.

        Args:
            index: The round, from 0.
            full_work: Local epochs (or steps) of a client that does all.
        """
        self.round = Round(self, index, full_work)
        for part in self.parts:
            part.begin_round(index)
        return self.round

    def end_round(self, shown: Tensor) -> None:
        """Make the round's end the boundary; from now on the round counts as done.

        Args:
            shown: The model that the module holds, shape ``(size,)``.
        """
        self.shown = shown
        self._shows_other = self.round.published is not self.server.model
        self.keep()

    def finish(self, index: int, execute: Execute) -> None:
        """Make clients' models of the last round, at a fit's end; call it on all processes.

        Of all that changes, only the schedule's state and the traffic stay: a further round is as it would be without.

        Args:
            index: The last round, from 0.
            execute: Trains tasks; see :attr:`Execute`.
        """
        schedule = self.algorithm.schedule
        last = self.begin_round(index)
        last.drive(schedule.finish(self.server), execute)
        self.books.count(last.report, self.server.changing)
        schedule.commit_vectors()
        schedule.keep()
        self.books.keep()
        self.put_back()

    @property
    def report(self) -> RoundReport:
        """What happened to the clients of the round under way, or of the last one."""
        return self.round.report

    # ---- clients ----

    def owner(self, task: Task, num_ranks: int) -> int | None:
        """Return the process to which a task belongs because of what is kept there; ``None`` if any will do."""
        if self.algorithm.schedule.circulates:
            return task.slot % num_ranks
        keeps_vectors = any(part.client_vectors and not part.federation.replicates for part in self.parts)
        return task.client % num_ranks if keeps_vectors else None

    # ---- logs ----

    @property
    def aggregated(self) -> bool:
        """Whether the model that was shown last is one that the server aggregated, not the first of all."""
        return self.server.moves > 0 and self.algorithm.schedule.shows_aggregate

    @property
    def personal_is_current(self) -> bool:
        """Whether the clients' models are those of the last round; see :attr:`Part.personal_is_current`."""
        return all(part.personal_is_current for part in self.parts)

    @property
    def models_sent(self) -> int:
        """Models sent up and down since the fit began."""
        return self.books.traffic.models_down + self.books.traffic.models_up

    def values(self) -> dict[str, float]:
        """Return the values that the round logs.

        ``fed/clients`` reported and were used, ``fed/dropped`` received a model and did not report, ``fed/left_out``
        handed back invalid values; ``fed/aggregations`` and ``fed/models_sent`` (up and down) count from the start;
        ``fed/aggregated`` is 1 if the module holds a model that the server aggregated, and 0 otherwise.
        """
        report = self.round.report
        joined: dict[str, float] = {
            "fed/clients": len(report.reported),
            "fed/dropped": report.dropped,
            "fed/left_out": len(report.left_out),
            "fed/aggregations": self.server.moves,
            "fed/aggregated": float(self.aggregated),
            "fed/models_sent": self.models_sent,
        }
        if self.algorithm.sampler.sends_scores:
            joined["fed/scored"] = report.scored + len(report.scores)
        for part in self.parts:
            joined |= part.values()
        return joined


def _classes_in(keys: Iterable[str]) -> str:
    """Return the classes that the keys of parts in a checkpoint name."""
    return ", ".join(key.partition("-")[2] for key in keys)


def _check_module(state: Mapping[str, Any], federation: Federation) -> None:
    """Raise ``ValueError`` if a state is of a module with other tensors."""
    layout = federation.layout
    same_names = state["names"] == list(layout.names)
    same_lengths = state["lengths"] == list(layout.lengths[: layout.num_trained])
    size = len(state["server"]["model"])
    if not same_names or not same_lengths or size != len(federation.model):
        raise ValueError(
            f"The module must have the trained and frozen tensors of the server's model, {size} "
            f"values in all, got others, {len(federation.model)} values. Go on with the same module."
        )
