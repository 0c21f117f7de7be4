"""The base of federated algorithms: six parts that answer six questions, and the server's state."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from fl_lightning.parts.composition import Composition
from fl_lightning.parts.federation import ClientResult, Federation, Task, same_values
from fl_lightning.parts.guards.changes_in_place import call
from fl_lightning.parts.guards.contracts import are_finite, call_for_vector
from fl_lightning.parts.guards.other_weights import check_adoption, warn_of_other_weights
from fl_lightning.parts.guards.own_parts import keep_late_vectors
from fl_lightning.parts.guards.received_models import ReceivedModels, check_start, refuse_result
from fl_lightning.parts.guards.resumable_states import check_clients, check_size, check_whole
from fl_lightning.parts.guards.seeded_draws import Moment
from fl_lightning.parts.logged_values import counts, joined_values
from fl_lightning.parts.sampling import ClientSampler
from fl_lightning.parts.server import Server
from fl_lightning.parts.traffic import RoundReport, Traffic
from fl_lightning.parts.traffic_meter import TrafficMeter


class Algorithm(Composition, ABC):
    """Calls the parts in order during a fit.

    In each round the loop calls :meth:`on_round_start`; for each task of :meth:`task_groups`, :meth:`start`, the
    client's training and :meth:`receive`; then :meth:`on_round_end` or :meth:`on_round_abort`.

    Args:
        parts: The arguments of :class:`Composition`.
    """

    #: The tasks that are known when a round begins, and about how many more there will be.
    planned_tasks: Sequence[Task] = ()
    unplanned_tasks = 0

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.traffic, self.report = Traffic(), RoundReport()
        self._server: Server | None = None
        self._published: Tensor | None = None  # at the last round's end of this fit
        self._showed_other = False  # the same, as a checkpoint says
        #: The model that the module holds since the last round's end, shape ``(size,)``, rounded to its types.
        self.shown: Tensor | None = None
        self.restored: dict[str, Any] | None = None  # the state of a checkpoint, until the fit begins
        self._received = ReceivedModels()
        self._model_before: Tensor | None = None  # the server's before hooks of this round changed the module
        #: Whether the state is half updated: a round's end has begun to change it, or failed while it did.
        self.is_half_changed = False

    @property
    def server(self) -> Server:
        """The server.

        Raises:
            RuntimeError: Before the fit has begun.
        """
        if self._server is None:
            raise RuntimeError("The server has no model before `trainer.fit` has begun.")
        return self._server

    @property
    def models_sent(self) -> int:
        """Models sent up and down since the fit began."""
        return self.traffic.models_down + self.traffic.models_up

    @property
    def aggregated(self) -> bool:
        """Whether the model that was published last is one that the server aggregated, not the first of all."""
        return self.server.aggregations > 0

    def replace_sampler(self, sampler: ClientSampler) -> None:
        """Draw clients with another sampler from the next round on; see :meth:`Composition.replace_sampler`."""
        super().replace_sampler(sampler)
        if self._federation is not None:
            self.meter.sampler = sampler

    # ---- a fit ----

    def on_fit_start(self, federation: Federation, *, fresh: bool) -> None:
        """Start a fit from the module's weights, or go on from a checkpoint or from an earlier fit.

        Args:
            federation: The run.
            fresh: Whether this is the first round of all.

        Raises:
            ValueError: If the checkpoint's models have another size than the module, or an exchange cannot begin anew
                with the model that an earlier fit left.
            RuntimeError: If an earlier fit failed in the middle of a round's end.
        """
        restored, self.restored = self.restored, None
        if restored is None and self._server is not None and not fresh:
            check_whole(self.is_half_changed, self.all_parts, self.federation)
            self._go_on(federation)
            return
        if restored is None and self.shown is not None and same_values(self.shown, federation.model):
            self.exchange.check_another_fit()
        if restored is not None:
            check_size(restored["model"], federation)  # clients that never trained have what the first model makes
            federation = replace(federation, model=restored["first"].to(federation.model))
        self.attach(federation, fresh=True)
        parts = self.aggregation, self.server_optimizer, self.exchange, self.changing_buffers
        self._server = Server(federation, *parts, self.drawing, self.schedule)
        self.traffic = Traffic()
        self._published, self._model_before, self._showed_other = None, None, False
        self.meter = TrafficMeter(federation, self.exchange, self.objective, self.sampler)
        if restored is not None:
            self._restore(restored)
        else:
            self.check_states()
        self.is_half_changed = False

    def _go_on(self, federation: Federation) -> None:
        """Go on from an earlier fit; the module may hold other weights than that fit left."""
        check_clients(before := self.federation, federation)
        known = self.shown is not None and same_values(self.shown, federation.model)
        if not known and self.schedule.in_cycle:
            warn_of_other_weights()
        elif not known:
            self.server.model, self._published, self._showed_other = federation.model, None, False
        self.attach(replace(federation, model=before.model), fresh=False)
        self.server.federation = self.federation

    def adopt(self, model: Tensor, *, in_round: bool = False) -> None:
        """Take what was written into the module between two rounds as the server's model, shape ``(size,)``.

        Args:
            model: The model that the module holds.
            in_round: Whether the round has begun: if it breaks off, the server's model is what it was before.

        Raises:
            RuntimeError: If models of this fit circulate, or the module held another model than the server's.
        """
        check_adoption(self.schedule.in_cycle or self._shows_other)
        if in_round:
            self._model_before = self.server.model
        else:
            self._published = None
        self.server.model = model

    @property
    def _shows_other(self) -> bool:
        """Whether the module was given another model than the server's at the last round's end."""
        published = self._published
        return self._showed_other if published is None else not same_values(published, self._boundary_model)

    @property
    def _boundary_model(self) -> Tensor:
        """The server's model at the last round's end, with what was written into the module since then."""
        return self.server.model if self._model_before is None else self._model_before

    # ---- a round ----

    def start_round(self, round_index: int) -> None:
        """Let the server and all parts start a round, from 0."""
        self.server.start_round(round_index)
        super().start_round(round_index)

    @abstractmethod
    def on_round_start(self, round_index: int, full_work: int = 1) -> None:
        """Draw the clients of a round, as far as they can be known.

        Args:
            round_index: The round, from 0. The same seed and round give the same clients.
            full_work: Local epochs (or steps) of a client that does all.
        """

    @abstractmethod
    def task_groups(self) -> Iterator[list[Task]]:
        """Yield the round's tasks, in groups whose results must be there before the next group is known."""

    def owner(self, task: Task, num_ranks: int) -> int | None:
        """Return the process to which a task belongs because of what is kept there; ``None`` if any will do."""
        return task.client % num_ranks if self._clients_stay else None

    def start(self, task: Task) -> Tensor:
        """Return the model from which the task starts, shape ``(size,)``; not to be written to."""
        server, given = self.server.model, (task.slot, self.server)
        with self.at_work(Moment.START, task):
            sent = call_for_vector(self.schedule, "start", *given, watch=(server,), lengths=(len(server),))
            model = self.exchange.download(task, sent)
        self._received.add(task, model)
        return model

    @abstractmethod
    def receive(self, result: ClientResult) -> None:
        """Take a finished client's result; one with NaN or infinite values is left out.

        Raises:
            FloatingPointError: If there are such values and ``invalid_updates`` is ``"raise"``.
        """

    def _uploaded(self, result: ClientResult) -> ClientResult | None:
        """Return the result as the server sees it; ``None`` if it has NaN or infinite values."""
        self._received.check(result.task, self.objective.correcting, self.exchange.overriding("download"))
        with self.at_work(Moment.UPLOAD, result.task):
            loss = self.objective.loss_of(result.task)
            if not are_finite(result) or (loss is not None and not math.isfinite(loss)):
                check_start(result, self.schedule, self.server, self.exchange.overriding("download"))
                if self.invalid_updates == "raise":
                    refuse_result(result.task)
                return None
            call(self.objective, "on_client_end", result, results=[result])
            return self.exchange.upload(replace(result, payload=self.meter.payload, loss=loss))

    @abstractmethod
    def on_round_end(self) -> Tensor:
        """End the round; call it on all processes, and :meth:`complete_round` when all else has ended it, too.

        Where it fails after states have begun to change, the algorithm :attr:`is_half_changed`.

        Returns:
            The model that the user sees now, shape ``(size,)``.
        """

    def complete_round(self, shown: Tensor) -> None:
        """Begin to count the round as done.

        Args:
            shown: The model that the module holds, shape ``(size,)``.
        """
        self.shown, self._model_before = shown, None
        for part in self.all_parts:
            part.forget_kept_state()
        self.same.on_round_end(self.all_parts, self.server.model, self._published, self.federation)
        self.unsaved.on_round_end(self.all_parts, self.server.aggregations)
        self.is_half_changed = False

    def _publish(self, model: Tensor) -> Tensor:
        """Return the model that the user sees, at the end of a round."""
        shown = self.changing_buffers.keep_constant(model, self.server.model)
        with self.drawing(Moment.PUBLISHED, self._round):
            self._published = self.exchange.published(shown)
        keep_late_vectors(self.all_parts, self.federation)
        return self._published

    def rounds_under_way(self) -> Collection[int] | None:
        """Return the earlier rounds on whose models clients have yet to be trained; ``None`` if no round has such."""
        return None

    def values(self) -> dict[str, float]:
        """Return further values that the round logs.

        Raises:
            TypeError: If a part returns anything else than numbers by name.
            ValueError: If two parts give a value the same name, or one gives it that of a count of the round.
        """
        with self.drawing(Moment.VALUES, self._round):
            logging = [(part, part.values()) for part in self.all_parts if part is not self.exchange]
        return joined_values([(self, self._counts()), *logging])

    def _counts(self) -> dict[str, float]:
        return counts(self.report, self.server.aggregations, self.aggregated, self.models_sent)

    def on_round_abort(self) -> None:
        """Forget the results of a round that broke off; what its end has begun to change cannot be taken back."""
        if self.is_half_changed:
            return
        self.is_half_changed = True
        self._abort()
        self.is_half_changed = False

    def _abort(self) -> None:
        self.abort_parts()
        self._received.forget()
        if self._server is not None:
            self._server.on_round_abort()
            self._server.model, self._model_before = self._boundary_model, None
        self.return_to_kept_states()

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Return the state at the last round boundary, or one that no fit has taken yet; call it on all processes.

        Raises:
            RuntimeError: If a fit failed in the middle of a round's end. For a ``ValueError`` see :func:`check_whole`.
        """
        if self._server is None or self.restored is not None:
            return self.restored or {}
        check_whole(self.is_half_changed, self.all_parts, self.federation)
        self.unsaved.warn()
        return self._state()

    def _state(self) -> dict[str, Any]:
        return {**self._own_state(), **{name: part.readable_state() for name, part in self.parts.items()}}

    def _own_state(self) -> dict[str, Any]:
        first, aggregations = self.federation.model, self.server.aggregations
        state = {"model": self._boundary_model, "first": first, "aggregations": aggregations}
        return {**state, "traffic": vars(self.traffic).copy(), "shows_other": self._shows_other}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep a checkpoint's state until the fit begins."""
        self.restored = state

    def _restore(self, state: dict[str, Any]) -> None:
        server, saved = self.server, state["model"]
        server.model = saved.to(device=server.model.device, dtype=server.model.dtype)
        server.aggregations = state["aggregations"]
        self.traffic = Traffic(**state["traffic"])
        self._showed_other = state["shows_other"]
        for name, part in self.parts.items():
            part.restore(state[name])
