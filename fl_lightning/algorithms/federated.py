"""Any mix of parts as an algorithm."""

from dataclasses import KW_ONLY, dataclass

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.algorithms.options import choose_arrivals, choose_sampler
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.samplers.base import ClientSampler
from fl_lightning.parts.schedules.base import Schedule
from fl_lightning.parts.servers.base import ServerOptimizer


@dataclass(eq=False, repr=False)
class Federated(AggregationCallback):
    """A federated algorithm made of any six parts; the defaults make FedAvg.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m;
            with an asynchronous schedule, results that arrive in a round. It excludes ``sampler``.
        sampler: Draws the clients of a round. An asynchronous schedule needs none.
        schedule: From which model clients start and when the server acts: :class:`~fl_lightning.parts.Synchronous`,
            :class:`~fl_lightning.parts.Redistribution` or :class:`~fl_lightning.parts.Asynchronous`.
        objective: What a client minimises.
        exchange: What travels: one exchange or a list, from the client to the server.
        aggregation: How results are merged.
        server: How the server moves.
        participation: Clients that cannot be reached, drop out or do part of the work.

    Raises:
        TypeError: If a part has the wrong type.
        ValueError: If an argument is out of its range, or parts cannot be combined.

    Example:
        >>> algorithm = Federated(2, objective=Proximal(0.1), aggregation=Median(), server=Momentum(0.9))
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    clients_per_round: int | float | None = None
    _: KW_ONLY
    schedule: Schedule | None = None
    objective: LocalObjective | None = None
    server: ServerOptimizer | None = None

    def make_sampler(self, clients_per_round: int | float | None, sampler: ClientSampler | None) -> ClientSampler:
        """Return the sampler that the two arguments describe.

        Raises:
            ValueError: If both are given and differ, or a sampler and an asynchronous schedule.
        """
        arrives = self.schedule is not None and self.schedule.asynchronous
        return (choose_arrivals if arrives else choose_sampler)(clients_per_round, sampler)

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm of the parts."""
        return self.compose(schedule=self.schedule, objective=self.objective, server_optimizer=self.server)
