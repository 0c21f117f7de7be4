"""Any mix of parts as an algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.algorithms.options import RunOptions, choose_arrivals, choose_sampler
from fl_lightning.checks import check
from fl_lightning.parts.aggregation import Aggregation
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.exchange import Exchange
from fl_lightning.parts.objectives import LocalObjective
from fl_lightning.parts.sampling import ClientSampler, Participation
from fl_lightning.parts.schedules import Schedule, Synchronous
from fl_lightning.parts.server import ServerOptimizer


class Federated(AggregationCallback):
    """A federated algorithm made of any six parts; the defaults make FedAvg.

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
        options: The other arguments of :class:`AggregationCallback`.

    Raises:
        TypeError: If a part has the wrong type.
        ValueError: If an argument is out of its range, or parts cannot be combined.
    """

    def __init__(
        self,
        clients_per_round: int | float | None = None,
        *,
        sampler: ClientSampler | None = None,
        schedule: Schedule | None = None,
        objective: LocalObjective | None = None,
        exchange: Exchange | Sequence[Exchange] | None = None,
        aggregation: Aggregation | None = None,
        server: ServerOptimizer | None = None,
        participation: Participation | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        self.schedule = Synchronous() if schedule is None else schedule
        check("`schedule`", self.schedule, Schedule)  # before the sampler is made, which depends on it
        self.objective, self.server = objective, server
        super().__init__(
            clients_per_round,
            sampler=sampler,
            participation=participation,
            exchange=exchange,
            aggregation=aggregation,
            **options,
        )

    def make_sampler(self, clients_per_round: int | float | None, sampler: ClientSampler | None) -> ClientSampler:
        """Return the sampler that the two arguments describe.

        Raises:
            ValueError: If both are given and differ, or a sampler and an asynchronous schedule.
        """
        choose = choose_arrivals if self.schedule.asynchronous else choose_sampler
        return choose(clients_per_round, sampler)

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm of the parts."""
        return self.compose(schedule=self.schedule, objective=self.objective, server=self.server)
