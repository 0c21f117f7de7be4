"""FedProx: FedAvg with a proximal term in the clients' objective."""

from __future__ import annotations

from typing import Any

from fl_lightning.algorithms.fedavg import FedAvg
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.hyperparameter import Scheduled
from fl_lightning.parts.objectives import Proximal


class FedProx(FedAvg):
    """FedProx (Li et al. 2020; eq. (4)): clients minimise ``F_k(w) + mu/2 |w - w_t|^2``; the server is FedAvg's.

    Args:
        mu: Weight of the proximal term, at least 0; with 0 this is FedAvg. A function of the round makes a schedule.
        kwargs: The arguments of :class:`FedAvg`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(self, mu: Scheduled, **kwargs: Any) -> None:
        self.mu = mu
        super().__init__(**kwargs)

    def configure_algorithm(self) -> Algorithm:
        """Return FedAvg's parts with the proximal objective."""
        algorithm = super().configure_algorithm()
        algorithm.objective = Proximal(self.mu)
        return algorithm
