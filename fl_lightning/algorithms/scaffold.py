"""SCAFFOLD: control variates."""

from __future__ import annotations

from typing import Literal, Unpack

from torch import Tensor

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.algorithms.options import FederatedOptions, check_beside_aggregation
from fl_lightning.parts.aggregation import WeightedMean, Weighting
from fl_lightning.parts.hyperparameter import Scheduled
from fl_lightning.parts.objectives import ControlVariates
from fl_lightning.parts.schedules import Synchronous
from fl_lightning.parts.server_optimizers import Mixing
from fl_lightning.parts.synchronous import SynchronousAlgorithm


class Scaffold(AggregationCallback):
    """SCAFFOLD (Karimireddy et al. 2020; eq. (13)-(16)): client steps are corrected by control variates.

    The local optimizer should be plain SGD, as in the paper. Option 2 divides a client's update by the sum of its
    steps' learning rates. The model and the control variate are sent both ways.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        option: How a client's control variate is updated: 2 from its update, 1 from the gradient at the received model.
        server_lr: Server learning rate eta_g; a function of the round makes a schedule.
        weighting: ``"uniform"`` as in the paper, or ``"samples"``.
        evaluate: The model that is validated, checkpointed and tested, as for :class:`FedDyn`.
        options: The other arguments of :class:`AggregationCallback`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        clients_per_round: int | float | None = None,
        *,
        option: Literal[1, 2] = 2,
        server_lr: Scheduled = 1.0,
        weighting: Weighting = "uniform",
        evaluate: Literal["server", "active", "all"] = "server",
        **options: Unpack[FederatedOptions],
    ) -> None:
        check_beside_aggregation(options.get("aggregation"), weighting=(weighting, "uniform"))
        self._variates = ControlVariates(option)
        self.option, self.server_lr, self.weighting, self.evaluate = option, server_lr, weighting, evaluate
        super().__init__(clients_per_round, **options)

    def configure_algorithm(self) -> SynchronousAlgorithm:
        """Return the parts."""
        return SynchronousAlgorithm(
            sampler=self.sampler,
            schedule=Synchronous(self.evaluate),
            objective=self._variates,
            aggregation=WeightedMean(self.weighting),
            server=Mixing(self.server_lr, name="server_lr"),
        )

    @property
    def control_variate(self) -> Tensor:
        """The server's c, shape ``(num_parameters,)``, float64: the mean of all c_k."""
        return self._variates.variates.mean

    def client_control_variate(self, client: int) -> Tensor:
        """Return c_k, shape ``(num_parameters,)``."""
        return self._variates.variates[client]
