"""FedExP and MIFA: other steps of the server along clients' updates."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.parts.aggregations.base import Weighting
from fl_lightning.parts.aggregations.extrapolated import ExtrapolatedMean
from fl_lightning.parts.aggregations.remembered import RememberedUpdates
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.settings import Positive


@dataclass(eq=False, repr=False)
class FedExP(AggregationCallback):
    """FedExP (Jhunjhunwala et al. 2023; eq. (83)): the server steps the further, the more clients' updates differ.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        epsilon: Bounds the step where updates cancel out, greater than 0.
        weighting: ``"uniform"`` as in the paper, or ``"samples"``.

    Example:
        >>> algorithm = FedExP(clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["fed/extrapolation"]  # the server's step
    """

    clients_per_round: int | float | None = None
    _: KW_ONLY
    epsilon: Positive = 1e-3
    weighting: Weighting = "uniform"
    aggregation_settings: ClassVar[Mapping[str, object]] = {"epsilon": 1e-3, "weighting": "uniform"}

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return self.compose(aggregation=ExtrapolatedMean(self.epsilon, self.weighting))


@dataclass(eq=False, repr=False)
class MIFA(AggregationCallback):
    """MIFA (Gu et al. 2021; eq. (84), (85)): a client that cannot be reached counts with its last update.

    The clients' learning rate must be the same in all steps of a round.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        weighting: ``"uniform"`` as in the paper, or ``"samples"``.

    Example:
        >>> algorithm = MIFA(1.0, participation=Participation(available=0.5))
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    clients_per_round: int | float | None = None
    _: KW_ONLY
    weighting: Weighting = "uniform"
    aggregation_settings: ClassVar[Mapping[str, object]] = {"weighting": "uniform"}

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return self.compose(aggregation=RememberedUpdates(self.weighting))
