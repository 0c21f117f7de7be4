"""Hierarchical federated averaging: groups of clients under regional models."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.groups import Groups
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.schedules.hierarchical import Hierarchical
from fl_lightning.parts.servers.base import ServerOptimizer
from fl_lightning.settings import Count


@dataclass(eq=False, repr=False)
class HierFAVG(AggregationCallback):
    """HierFAVG (Liu et al. 2020; eq. (89), (90)): edges average their clients' models, and the server the edges'.

    A round is one inner round, in which the clients of each group train from the group's model. Every ``inner_rounds``
    rounds the server moves. With ``inner_rounds=1`` and all clients in each round this is FedAvg.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AggregationCallback`; ``sampler=GroupSampler(...)`` draws clients of each
    group.

    Args:
        groups: The clients of each group; or the number of groups, which then are clients in a row.
        inner_rounds: kappa_2, rounds from one aggregation at the server to the next.
        clients_per_round: Clients that train in a round, of all groups together: a float is the fraction C (here all),
            an int the number m.
        evaluate: The model that is validated, checkpointed and tested between two aggregations: ``"virtual"``, the mean
            of the groups' models (they do not receive it), or ``"aggregate"``, the server's last model.
        local: Local objective.
        server: Server optimizer applied at each aggregation; default: replace the model by the mean.
        aggregation: Merges the groups' models, instead of their mean weighted by the groups' samples.

    Raises:
        ValueError: If an argument is out of its range; when the fit begins, if a client is not in one group.

    Example:
        >>> algorithm = HierFAVG(groups=2, inner_rounds=2)
        >>> trainer = L.Trainer(max_epochs=4, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    groups: Groups
    inner_rounds: Count
    clients_per_round: int | float | None = None
    _: KW_ONLY
    evaluate: Literal["virtual", "aggregate"] = "virtual"
    local: LocalObjective | None = None
    server: ServerOptimizer | None = None

    usual_clients_per_round: ClassVar[float | None] = 1.0

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        schedule = Hierarchical(self.groups, self.inner_rounds, self.evaluate)
        return self.compose(schedule=schedule, objective=self.local, server_optimizer=self.server)
