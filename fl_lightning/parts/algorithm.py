"""The base of federated algorithms: six parts that answer six questions, and the server's state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from fl_lightning.arguments import check_choice
from fl_lightning.parts.aggregation import Aggregation
from fl_lightning.parts.checks import as_list, check_part
from fl_lightning.parts.exchange.base import Chain, Exchange
from fl_lightning.parts.exchange.buffers import BufferExchange, Buffers, ChangingBuffers
from fl_lightning.parts.federation import ClientResult, Federation, Task
from fl_lightning.parts.objectives import LocalObjective
from fl_lightning.parts.part import Part
from fl_lightning.parts.participation import Participation
from fl_lightning.parts.sampling import ClientSampler
from fl_lightning.parts.server import Server
from fl_lightning.parts.server_optimizers import ServerOptimizer
from fl_lightning.parts.traffic import RoundReport, Traffic
from fl_lightning.parts.traffic_meter import TrafficMeter

Invalid = Literal["skip", "raise"]


class Algorithm(ABC):
    """Leads the parts through a fit.

    In each round the loop calls :meth:`on_round_start`; for each task of :meth:`task_groups`, :meth:`start`, the
    client's training and :meth:`receive`; then :meth:`on_round_end` or :meth:`on_round_abort`.

    Args:
        sampler: Draws the clients of a round.
        schedule: Gives the models from which clients start, and decides when the server acts.
        aggregation: Merges results.
        server: Moves the server's model.
        objective: What clients minimise; the plain objective if ``None``.
        exchange: What travels, beside the rule for buffers: one exchange or a list, from the client to the server.

    Raises:
        TypeError: If a part is of another kind.
    """

    #: Whether clients may still train on models of earlier rounds, with those rounds' learning rates.
    overlaps_rounds = False

    def __init__(
        self,
        *,
        sampler: ClientSampler,
        schedule: Part,
        aggregation: Aggregation,
        server: ServerOptimizer,
        objective: LocalObjective | None = None,
        exchange: Exchange | Sequence[Exchange] | None = None,
    ) -> None:
        self.sampler = sampler
        self.schedule: Any = schedule
        self.objective = objective or LocalObjective()
        self.aggregation = aggregation
        self.server_optimizer = server
        self.exchange = Chain(as_list(exchange))
        self.participation = Participation()
        self.invalid_updates: Invalid = "skip"
        self.traffic, self.report = Traffic(), RoundReport()
        self.changing_buffers = ChangingBuffers()
        self._buffers = BufferExchange()
        self._server: Server | None = None
        self._federation: Federation | None = None
        self._published: Tensor | None = None
        self._restored: dict[str, Any] | None = None

    def configure(
        self,
        participation: Participation | None = None,
        buffers: Buffers = "average",
        invalid_updates: Invalid = "skip",
        exchange: Exchange | Sequence[Exchange] | None = None,
        aggregation: Aggregation | None = None,
    ) -> None:
        """Take the settings that all algorithms share, and check that the parts fit together.

        Args:
            participation: Clients that cannot be reached, drop out or do part of the work.
            buffers: How buffers are exchanged; see :class:`BufferExchange`.
            invalid_updates: Whether clients with NaN or infinite values are left out or end the fit.
            exchange: Exchanges that follow the algorithm's own.
            aggregation: Takes the place of the algorithm's own.

        Raises:
            TypeError: If a part is of another kind.
            ValueError: If parts do not fit together.
        """
        check_choice("invalid_updates", invalid_updates, ("skip", "raise"))
        self.participation = check_part("participation", participation or Participation(), Participation)
        self.invalid_updates = invalid_updates
        self._buffers = BufferExchange(buffers)
        self.exchange = Chain([self._buffers, *self.exchange.members, *as_list(exchange)])
        self.aggregation = aggregation or self.aggregation
        check_part("sampler", self.sampler, ClientSampler)
        check_part("objective", self.objective, LocalObjective)
        check_part("aggregation", self.aggregation, Aggregation)
        check_part("server", self.server_optimizer, ServerOptimizer)

    @property
    def federation(self) -> Federation:
        """The federation of the fit.

        Raises:
            RuntimeError: Before the fit has begun.
        """
        if self._federation is None:
            raise RuntimeError("The algorithm belongs to no federation before `trainer.fit` has begun.")
        return self._federation

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

    @property
    def parts(self) -> dict[str, Part]:
        """All parts by name, in the order in which they start a fit."""
        return {
            "sampler": self.sampler,
            "schedule": self.schedule,
            "objective": self.objective,
            "aggregation": self.aggregation,
            "server_optimizer": self.server_optimizer,
            "exchange": self.exchange,
            "changing_buffers": self.changing_buffers,
        }

    @property
    def keeps_client_states(self) -> bool:
        """Whether clients keep vectors between rounds; a client then belongs to one process."""
        return any(part.keeps_client_states for part in self.parts.values())

    def replace_sampler(self, sampler: ClientSampler) -> None:
        """Draw clients with another sampler from the next round on.

        Raises:
            TypeError: If it is no :class:`ClientSampler`.
        """
        self.sampler = check_part("sampler", sampler, ClientSampler)
        if self._federation is not None:
            sampler.attach(self._federation)
            self.meter.sends_scores = sampler.needs_scores

    # ---- a fit ----

    def on_fit_start(self, federation: Federation, *, fresh: bool) -> None:
        """Start a fit from the module's weights, or go on from a checkpoint or from an earlier fit.

        Args:
            federation: The run.
            fresh: Whether this is the first round of all.

        Raises:
            ValueError: If the checkpoint's models have another size than the module.
        """
        restored, self._restored = self._restored, None
        if restored is None and self._server is not None and not fresh:
            known = self._published is not None and torch.equal(self._published, federation.model)
            if not known and not self.schedule.in_cycle:
                self._server.model = federation.model
            self._join(replace(federation, model=self.federation.model), fresh=False)
            return
        self._join(federation, fresh=True)
        parts = self.aggregation, self.server_optimizer, self.exchange, self.changing_buffers
        self._server = Server(federation, *parts)
        self.traffic = Traffic()
        self.meter = TrafficMeter(federation, self.exchange, self.objective.vectors_sent, self.sampler.needs_scores)
        if restored is not None:
            self._restore(restored)

    def _join(self, federation: Federation, *, fresh: bool) -> None:
        self._federation = federation
        for part in self.parts.values():
            part.attach(federation, fresh=fresh)
        if self._server is not None:
            self._server.federation = federation

    # ---- a round ----

    @abstractmethod
    def on_round_start(self, round_index: int, full_work: int = 1) -> None:
        """Draw the clients of a round, or what of them can be known.

        Args:
            round_index: The round, from 0. The same seed and round give the same clients.
            full_work: Local epochs (or steps) of a client that does all.
        """

    @property
    def planned_tasks(self) -> Sequence[Task]:
        """The tasks that are known when the round begins."""
        return ()

    @property
    def unplanned_tasks(self) -> int:
        """About how many more tasks there will be."""
        return 0

    @abstractmethod
    def task_groups(self) -> Iterator[list[Task]]:
        """Yield the round's tasks, in groups whose results must be there before the next group is known."""

    def owner(self, task: Task, num_ranks: int) -> int | None:
        """Return the process to which a task belongs because of what is kept there; ``None`` if any will do."""
        return task.client % num_ranks if self.keeps_client_states else None

    def start(self, task: Task) -> Tensor:
        """Return the model from which the task starts, shape ``(size,)``; not to be written to."""
        return self.exchange.download(task, self.schedule.start(task.slot, self.server))

    @abstractmethod
    def receive(self, result: ClientResult) -> None:
        """Take a finished client's result; one with NaN or infinite values is left out.

        Raises:
            FloatingPointError: If there are such values and ``invalid_updates`` is ``"raise"``.
        """

    def _uploaded(self, result: ClientResult) -> ClientResult | None:
        """Return the result as the server sees it; ``None`` if it has NaN or infinite values."""
        if not self.changing_buffers.are_finite(result):
            if self.invalid_updates == "raise":
                task = result.task
                raise FloatingPointError(
                    f"Client {task.client} ({task.num_samples} samples) handed back NaN or infinite values. Lower the "
                    'learning rate or clip gradients, or give `invalid_updates="skip"` to leave such clients out.'
                )
            return None
        self.objective.on_client_end(result)
        return self.exchange.upload(replace(result, payload=self.meter.payload))

    @abstractmethod
    def on_round_end(self) -> Tensor:
        """End the round; call it on all processes.

        Returns:
            The model that the user sees now, shape ``(size,)``.
        """

    def _publish(self, model: Tensor) -> Tensor:
        """Return the model that the user sees."""
        shown = self.changing_buffers.keep_constant(model, self.server.model)
        self._published = self.exchange.published(shown)
        return self._published

    def rounds_under_way(self) -> Collection[int]:
        """Return the earlier rounds on whose models clients have yet to be trained."""
        return ()

    def values(self) -> dict[str, float]:
        """Return what the round logs beside its clients and cost."""
        return {}

    def on_round_abort(self) -> None:
        """Forget the results of a round that broke off."""
        for part in self.parts.values():
            part.on_round_abort()
        if self._server is not None:
            self._server.on_round_abort()

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Return the state at the last round boundary, or one that no fit has taken yet; call it on all processes."""
        if self._server is None or self._restored is not None:
            return self._restored or {}
        return {**self._own_state(), **{name: part.state_dict() for name, part in self.parts.items()}}

    def _own_state(self) -> dict[str, Any]:
        server = self.server
        return {"model": server.model, "aggregations": server.aggregations, "traffic": vars(self.traffic).copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep a checkpoint's state until the fit begins."""
        self._restored = state

    def _restore(self, state: dict[str, Any]) -> None:
        server = self.server
        saved: Tensor = state["model"]
        if saved.shape != server.model.shape:
            raise ValueError(
                f"The checkpoint's server model has {saved.numel()} values, the module {server.model.numel()}. Resume "
                "with the same module, with the same layers frozen."
            )
        server.model = saved.to(device=server.model.device, dtype=server.model.dtype)
        server.aggregations = state["aggregations"]
        self.traffic = Traffic(**state["traffic"])
        for name, part in self.parts.items():
            part.load_state_dict(state[name])

    def __repr__(self) -> str:
        parts = [f"{name}={type(part).__name__}" for name, part in self.parts.items() if name != "changing_buffers"]
        return f"{type(self).__name__}({', '.join(parts)})"
