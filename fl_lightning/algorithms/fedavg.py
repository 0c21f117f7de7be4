"""Federated averaging."""

from __future__ import annotations

from typing import Any, Literal

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.arguments import check_choice
from fl_lightning.parts.aggregation import CurrentMean, StaleMean, WeightedMean, Weighting
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.hyperparameter import Scheduled
from fl_lightning.parts.schedules import Synchronous
from fl_lightning.parts.server_optimizers import Mixing

_AGGREGATIONS = {"selected": WeightedMean, "stale": StaleMean, "current": CurrentMean}


class FedAvg(AggregationCallback):
    """FedAvg (McMahan et al. 2017; eq. (1)-(3c)): the server moves to the mean of the clients' models.

    With ``local_epochs=1`` and a data module of ``batch_size=None`` this is FedSGD.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C, an int the number m.
        weighting: ``"samples"`` weighs a client by its size n_k, ``"uniform"`` all alike.
        partial: What clients count with that do not train in a round: ``"selected"``, the mean is over those that do
            (3a); ``"stale"``, their last local model (3b); ``"current"``, the server's model (3c).
        server_lr: Server learning rate: ``w + server_lr (mean - w)``; 1 replaces the model. A function of the round
            makes a schedule.
        kwargs: The arguments of :class:`AggregationCallback`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        clients_per_round: int | float = 0.1,
        *,
        weighting: Weighting = "samples",
        partial: Literal["selected", "stale", "current"] = "selected",
        server_lr: Scheduled = 1.0,
        **kwargs: Any,
    ) -> None:
        check_choice("partial", partial, tuple(_AGGREGATIONS))
        self.weighting = weighting
        self.partial = partial
        self.server_lr = server_lr
        super().__init__(clients_per_round, **kwargs)

    def configure_algorithm(self) -> Algorithm:
        """Return the five parts."""
        return Algorithm(
            sampler=self.sampler,
            schedule=Synchronous(),
            aggregation=_AGGREGATIONS[self.partial](self.weighting),
            server=Mixing(self.server_lr),
        )
