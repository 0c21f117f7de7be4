"""q-FedAvg: clients with larger losses count more."""

from __future__ import annotations

from typing import Unpack

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.algorithms.options import FederatedOptions, check_with_aggregation
from fl_lightning.checks import NotNegative, Positive, Scheduled
from fl_lightning.parts.aggregation import Aggregation, FairMean
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.objectives import MeasuredLoss
from fl_lightning.parts.server import Mixing


class QFedAvg(AggregationCallback):
    """q-FedAvg (Li et al. 2020, Fair Resource Allocation): minimises ``sum_k p_k F_k^(q+1) / (q+1)``.

    With a larger q, clients with large losses count more, and losses become more alike. Each client computes its loss
    at the received model before it trains. This costs one more pass over its data, without gradients. Clients are drawn
    uniformly. With ``q=0`` this is FedAvg with uniform weights.

    Args:
        q: Weight of clients with large losses, at least 0: 0 is FedAvg.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        lipschitz: L, the inverse of a learning rate that works with q = 0; ``None`` takes 1 / the clients' learning
            rate.
        server_lr: Server learning rate; a function of the round makes a schedule.
        aggregation: Replaces the fair mean; only with ``q=0``, since it knows nothing of losses.
        options: The other arguments of :class:`AggregationCallback`.

    Raises:
        ValueError: If an argument is out of its range; in a round, if a client's loss is negative.
    """

    def __init__(
        self,
        q: NotNegative,
        clients_per_round: int | float | None = None,
        *,
        lipschitz: Positive | None = None,
        server_lr: Scheduled = 1.0,
        aggregation: Aggregation | None = None,
        **options: Unpack[FederatedOptions],
    ) -> None:
        check_with_aggregation(aggregation, q=(q, 0), lipschitz=(lipschitz, None))
        measured = MeasuredLoss()
        self._mean = FairMean(q, measured, lipschitz)
        self._objective = measured if aggregation is None else None  # it costs a pass over the clients' data
        self.q, self.lipschitz, self.server_lr = q, lipschitz, server_lr
        super().__init__(clients_per_round, aggregation=aggregation, **options)

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return self.compose(objective=self._objective, aggregation=self._mean, server=Mixing(self.server_lr))
