"""FedNova: clients that make more steps do not count for more."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.parts.aggregations.base import Weighting
from fl_lightning.parts.aggregations.normalized import NormalizedMean
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.objectives.proximal import proximal
from fl_lightning.parts.servers.mixing import Mixing
from fl_lightning.settings import Fraction, NotNegative, Scheduled


@dataclass(eq=False, repr=False)
class FedNova(AggregationCallback):
    """FedNova (Wang et al. 2020): each update is divided by the reach of its local steps before the mean is taken.

    Clients may make different numbers of steps, because they have more samples or are stragglers. FedAvg then converges
    to the optimum of another objective than ``sum_k p_k F_k``. FedNova does not. The local optimizer is plain SGD or
    SGD with momentum, at one learning rate within a round.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        momentum: Momentum of the clients' SGD, in [0, 1). The module's optimizer must have the same value.
        mu: Weight of a proximal term ``mu/2 |w - w_t|^2`` in the clients' objective, at least 0.
        weighting: ``"samples"`` weighs a client by its size n_k, ``"uniform"`` gives all clients the same weight.
        server_lr: Server learning rate; a function of the round makes a schedule.
        aggregation: Replaces the normalised mean, so that this is FedProx.

    Raises:
        ValueError: If an argument is out of its range; when the fit begins, if the module's optimizer is not SGD of
            this momentum, or its learning rate changes within a round.

    Example:
        >>> algorithm = FedNova(clients_per_round=2, participation=Participation(stragglers=0.5), local_epochs=3)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    clients_per_round: int | float | None = None
    _: KW_ONLY
    momentum: Fraction = 0.0
    mu: NotNegative = 0.0
    weighting: Weighting = "samples"
    server_lr: Scheduled = 1.0
    aggregation_settings: ClassVar[Mapping[str, object]] = {"momentum": 0.0, "weighting": "samples"}

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        mean = NormalizedMean(self.momentum, self.mu, self.weighting)
        return self.compose(objective=proximal(self.mu), aggregation=mean, server_optimizer=Mixing(self.server_lr))
