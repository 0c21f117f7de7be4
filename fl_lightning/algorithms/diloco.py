"""DiLoCo: many inner steps of AdamW, and outer steps of Nesterov momentum."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.parts.aggregations.base import Weighting
from fl_lightning.parts.aggregations.means import WeightedMean
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.client_optimizers import OptimizerStates
from fl_lightning.parts.servers.torch import TorchServer
from fl_lightning.settings import Count, Fraction, Scheduled


@dataclass(eq=False, repr=False)
class DiLoCo(AggregationCallback):
    """DiLoCo (Douillard et al. 2023; eq. (81), (82)): H inner steps, then one of Nesterov momentum on the server.

    The inner optimizer is the module's, in the paper AdamW. It goes on from round to round, and so do a client's
    epochs. All clients train in each round, and count alike.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C (here all), an int the number m.
        local_steps: H, inner steps of a round; ``None`` counts epochs, and needs ``continue_epochs=False``.
        continue_epochs: As for :class:`AggregationCallback`, with another default.
        optimizer_state: As for :class:`AggregationCallback`, with another default.
        server_lr: Outer learning rate; a function of the round makes a schedule.
        momentum: Outer momentum, in [0, 1); with 0 and ``server_lr=1`` this is FedAvg with inner optimizers that go on.
        weighting: ``"uniform"`` as in the paper, or ``"samples"``.

    Example:
        >>> algorithm = DiLoCo(local_steps=4)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    clients_per_round: int | float | None = None
    _: KW_ONLY
    local_steps: Count | None = 500
    continue_epochs: bool = True
    optimizer_state: OptimizerStates = "kept"
    server_lr: Scheduled = 0.7
    momentum: Fraction = 0.9
    weighting: Weighting = "uniform"
    aggregation_settings: ClassVar[Mapping[str, object]] = {"weighting": "uniform"}

    usual_clients_per_round: ClassVar[float | None] = 1.0

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        # PyTorch has no Nesterov momentum of 0.
        nesterov = self.momentum > 0
        outer = TorchServer(torch.optim.SGD, self.server_lr, momentum=self.momentum, nesterov=nesterov)
        return self.compose(aggregation=WeightedMean(self.weighting), server_optimizer=outer)
