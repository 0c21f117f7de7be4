"""q-FedAvg: clients with larger losses count more."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.parts.aggregations.fair import FairMean
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.objectives.measured import MeasuredLoss
from fl_lightning.parts.servers.mixing import Mixing
from fl_lightning.settings import NotNegative, Positive, Scheduled


@dataclass(eq=False, repr=False)
class QFedAvg(AggregationCallback):
    """q-FedAvg (Li et al. 2020, Fair Resource Allocation): minimises ``sum_k p_k F_k^(q+1) / (q+1)``.

    With a larger q, clients with large losses count more, and losses become more alike. Each client computes its loss
    at the received model before it trains. This costs one more pass over its data, without gradients. Clients are drawn
    uniformly. With ``q=0`` this is FedAvg with uniform weights.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        q: Weight of clients with large losses, at least 0: 0 is FedAvg.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        lipschitz: L, the inverse of a learning rate that works with q = 0; ``None`` takes 1 / the clients' learning
            rate.
        server_lr: Server learning rate; a function of the round makes a schedule.
        aggregation: Replaces the fair mean; only with ``q=0``, since it knows nothing of losses.

    Raises:
        ValueError: If an argument is out of its range; in a round, if a client's loss is negative.

    Example:
        >>> algorithm = QFedAvg(q=0.5, clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_clients_min"]  # of the client that fares worst
    """

    q: NotNegative
    clients_per_round: int | float | None = None
    _: KW_ONLY
    lipschitz: Positive | None = None
    server_lr: Scheduled = 1.0
    aggregation_settings: ClassVar[Mapping[str, object]] = {"q": 0, "lipschitz": None}

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        measured = MeasuredLoss()
        # The losses cost a pass over the clients' data, so they are not measured for nothing.
        return self.compose(
            objective=measured if self.aggregation is None else None,
            aggregation=FairMean(self.q, measured, self.lipschitz),
            server_optimizer=Mixing(self.server_lr),
        )
