"""Mime and MimeLite: clients step with the server's momentum."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.parts.aggregations.base import Weighting
from fl_lightning.parts.aggregations.means import WeightedMean
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.objectives.shared_momentum import SharedMomentum
from fl_lightning.parts.schedules.gradient_first import GradientFirst
from fl_lightning.settings import Fraction


@dataclass(eq=False, repr=False)
class Mime(AggregationCallback):
    """Mime with momentum (Karimireddy et al. 2020; eq. (86)-(88)): clients mimic SGD with momentum on all data.

    The module's optimizer should be plain SGD, whose learning rate is the paper's eta.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        momentum: beta, in [0, 1): the share of the server's momentum in a client's step.
        weighting: ``"uniform"`` as in the paper, or ``"samples"``, of the models; gradients count alike.

    Example:
        >>> algorithm = Mime(clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    clients_per_round: int | float | None = None
    _: KW_ONLY
    momentum: Fraction = 0.9
    weighting: Weighting = "uniform"
    aggregation_settings: ClassVar[Mapping[str, object]] = {"weighting": "uniform"}
    #: Whether gradients are corrected by those at the received model.
    is_corrected: ClassVar[bool] = True

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        momentum = SharedMomentum(self.momentum, self.is_corrected)
        schedule = GradientFirst(objective=momentum)
        return self.compose(schedule=schedule, objective=momentum, aggregation=WeightedMean(self.weighting))


@dataclass(eq=False, repr=False)
class MimeLite(Mime):
    """MimeLite (Karimireddy et al. 2020; eq. (86)-(88)): Mime without the correction of gradients.

    The arguments are those of :class:`Mime`. With ``momentum=0`` this is FedAvg.

    Example:
        >>> algorithm = MimeLite(clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    is_corrected: ClassVar[bool] = False
