"""A federated algorithm: six parts that a user chooses, and what goes with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.base import Aggregation
from fl_lightning.parts.aggregations.means import WeightedMean
from fl_lightning.parts.aggregations.summed import aggregation_for
from fl_lightning.parts.client_optimizers import ClientOptimizers, OptimizerStates
from fl_lightning.parts.exchanges.base import Chain, Exchange
from fl_lightning.parts.exchanges.buffers import BufferExchange, Buffers
from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.messages import RoundReport, Task, Traffic
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.objectives.corrections import Correction
from fl_lightning.parts.part import Part, walk
from fl_lightning.parts.run import Run
from fl_lightning.parts.samplers.base import ClientSampler
from fl_lightning.parts.samplers.participation import Participation
from fl_lightning.parts.samplers.uniform import UniformSampler
from fl_lightning.parts.schedules.base import Schedule
from fl_lightning.parts.schedules.synchronous import Synchronous
from fl_lightning.parts.server import Server
from fl_lightning.parts.servers.base import ServerOptimizer
from fl_lightning.parts.servers.mixing import Mixing
from fl_lightning.settings import check_fields

InvalidUpdates = Literal["skip", "raise"]


@dataclass(eq=False)
class Algorithm:
    """Six parts that answer six questions; the defaults make FedAvg.

    Besides these, the clients' optimizers are a part too, which :attr:`optimizer_state` sets. ``participation`` is
    none: a round asks it who can be reached and who drops out, and it has no state.

    An algorithm is settings. :class:`Run` is a fit of them, and :class:`Round` one round of it.

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
        optimizer_state: Whether clients' optimizers begin a round empty; see :class:`ClientOptimizers`.

    Attributes:
        chain: All exchanges, that of the buffers first. FedAvg has no other.
        optimizers: What clients' optimizers hold.
        run: The fit, once one has begun; ``FederatedLoop.begin_fit`` sets it.

    Raises:
        TypeError: If a part has the wrong type.
        ValueError: If parts cannot be combined.
    """

    sampler: ClientSampler = field(default_factory=lambda: UniformSampler(0.1))
    schedule: Schedule = field(default_factory=Synchronous)
    objective: LocalObjective = field(default_factory=LocalObjective)
    exchange: Exchange | Sequence[Exchange] = ()
    aggregation: Aggregation = field(default_factory=WeightedMean)
    server_optimizer: ServerOptimizer = field(default_factory=Mixing)
    participation: Participation = field(default_factory=Participation)
    buffers: Buffers = "average"
    invalid_updates: InvalidUpdates = "skip"
    optimizer_state: OptimizerStates = "fresh"
    chain: Chain = field(init=False)
    optimizers: ClientOptimizers = field(init=False)
    run: Run = field(init=False)

    def __post_init__(self) -> None:
        check_fields(self)
        # `exchange` stays as the user has given it, one or several and without the buffers'. So it is not what the
        # library asks: that is `chain`, which is one exchange whatever was given.
        given = [self.exchange] if isinstance(self.exchange, Exchange) else self.exchange
        self.chain = Chain([BufferExchange(self.buffers), *given])
        self.optimizers = ClientOptimizers(self.optimizer_state)
        self.aggregation = aggregation_for(self.chain.members, self.aggregation)
        self._check_parts()

    def _check_parts(self) -> None:
        """Raise ``ValueError`` if parts cannot be combined."""
        for reason in self._conflicts():
            raise ValueError(reason)

    def _conflicts(self) -> Iterator[str]:
        schedule = self.schedule
        objective = self.objective
        if schedule.asynchronous and any(vars(self.participation).values()):
            yield "`participation` needs rounds. For clients that come and go give `VirtualClock(online=, dropout=)`."
        if objective.starts_from_server and not schedule.starts_from_server:
            yield f"`objective` cannot be {objective!r} with {schedule!r}: its clients start from the server's model."
        for part in walk(*self.parts.values()):
            # A user's method may return nothing, and raise its own error.
            yield from part.check_with(self) or ()

    @property
    def parts(self) -> dict[str, Part]:
        """All parts by name, the six and the clients' optimizers, in the order in which they start a fit."""
        return {
            "exchange": self.chain,
            "sampler": self.sampler,
            "schedule": self.schedule,
            "objective": self.objective,
            "aggregation": self.aggregation,
            "server_optimizer": self.server_optimizer,
            "optimizers": self.optimizers,
        }

    @property
    def has_personal(self) -> bool:
        """Whether clients may be evaluated with other models than the server's."""
        return any(part.has_personal for part in walk(*self.parts.values()))

    @property
    def needs_summed_lr(self) -> bool:
        """Whether a part needs :attr:`ClientResult.summed_lr`."""
        return self.objective.needs_summed_lr or self.aggregation.needs_summed_lr

    def batches_per_step(self, task: Task) -> int:
        """Return how many batches the task's client takes for one optimizer step."""
        return 1 if task.phase else self.objective.batches_per_step

    def correction(self, client: LocalClient) -> Correction | None:
        """Return what is asked of the steps of a client that begins; ``None`` for nothing."""
        return self.schedule.correction(client) if client.task.phase else self.objective.correction(client)

    def replace_sampler(self, sampler: ClientSampler) -> None:
        """Draw clients with another sampler from the next round on.

        Raises:
            ValueError: If it cannot be combined with another part.
        """
        before = self.sampler
        self.sampler = sampler
        try:
            self._check_parts()
        except ValueError:
            self.sampler = before
            raise
        if self.has_begun:
            self.run.replace_sampler(sampler)

    # ---- the fit, for readers ----

    @property
    def has_begun(self) -> bool:
        """Whether a fit has begun."""
        return hasattr(self, "run")

    @property
    def server(self) -> Server:
        """The server's model, and how it moves."""
        return self.run.server

    @property
    def federation(self) -> Federation:
        """The clients, the processes and the model's layout."""
        return self.run.federation

    @property
    def tasks(self) -> Sequence[Task]:
        """The tasks of the round under way, as far as they are known when it begins."""
        return self.run.round.tasks

    @property
    def report(self) -> RoundReport:
        """What happened to the clients of the last round."""
        return self.run.report

    @property
    def traffic(self) -> Traffic:
        """Everything that was sent since the fit began."""
        return self.run.books.traffic

    @property
    def models_sent(self) -> int:
        """Models sent up and down since the fit began."""
        return self.run.models_sent

    def received(self, task: Task) -> Tensor:
        """Return what a client receives for a task, shape ``(size,)``; see :meth:`Round.received`."""
        return self.run.round.received(task)

    @override
    def __repr__(self) -> str:
        return f"Algorithm({', '.join(f'{name}={part!r}' for name, part in self.parts.items())})"
