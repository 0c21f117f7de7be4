"""RADFed: aggregation delayed by redistribution."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.parts.aggregations.means import WeightedMean
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.schedules.redistribution import Redistribution
from fl_lightning.parts.servers.base import ServerOptimizer
from fl_lightning.settings import Count


@dataclass(eq=False, repr=False)
class RADFed(AggregationCallback):
    """RADFed (Xue et al. 2021; eq. (35)-(37)): models circulate among clients for S rounds, then are averaged.

    A round is one inner round: each of the m circulating models trains on one client. Every S rounds the server moves
    to the plain mean of the models. With ``redistributions=1`` this is FedAvg with uniform weights, bit for bit.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AggregationCallback`; ``sampler=ImportanceSampler(...)`` makes RADFedi.

    Args:
        redistributions: S, local trainings of a circulating model between two aggregations.
        clients_per_round: Number of circulating models and of clients in a round: a float is the fraction C of the
            clients (default 0.1), an int the number m.
        evaluate: The model that is validated, checkpointed and tested between two aggregations: ``"virtual"``, the mean
            of the circulating models (they do not receive it), or ``"aggregate"``, the server's last model.
            :class:`~fl_lightning.callbacks.FederatedCheckpoint` chooses among aggregated models only.
        unequal: What happens in an inner round with fewer active clients than models, because clients are not reached
            or drop out, or the sampler draws fewer. ``"subsample"`` raises an error, ``"reduce"`` drops models at
            random for the rest of the cycle, ``"park"`` lets some models skip the round, ``"count"`` trains the models
            that were trained least often.
        extend_cycle: With ``"count"``, a cycle lasts until every model was trained S times.
        local: Local objective; ``Proximal(mu)`` makes RADFedp, whose centre is the received model.
        server: Server optimizer applied at each aggregation; default: replace the model by the mean. ``Mixing(lr)``
            makes RADFedm, ``Adaptive(...)`` RADFeda.
        aggregation: Merges the circulating models, instead of their plain mean.

    Raises:
        ValueError: If an argument is out of its range, or clients may drop out under ``unequal="subsample"``.

    Example:
        >>> algorithm = RADFed(redistributions=2, clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=4, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    redistributions: Count
    clients_per_round: int | float | None = None
    _: KW_ONLY
    evaluate: Literal["virtual", "aggregate"] = "virtual"
    unequal: Literal["subsample", "reduce", "park", "count"] = "subsample"
    extend_cycle: bool = False
    local: LocalObjective | None = None
    server: ServerOptimizer | None = None

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        schedule = Redistribution(self.redistributions, self.evaluate, self.unequal, self.extend_cycle)
        mean = WeightedMean("uniform")
        return self.compose(schedule=schedule, objective=self.local, aggregation=mean, server_optimizer=self.server)
