"""FedProx: FedAvg with a proximal term in the clients' objective."""

from __future__ import annotations

from typing import Unpack

from fl_lightning.algorithms.fedavg import FedAvg, FedAvgOptions
from fl_lightning.checks import Scheduled, ScheduledWeight
from fl_lightning.parts.objectives import LocalObjective, Proximal


class FedProx(FedAvg):
    """FedProx (Li et al. 2020; eq. (4)): clients minimise ``F_k(w) + mu/2 |w - w_t|^2``; the server is FedAvg's.

    Equations are numbered as in ``docs/references.md``.

    Args:
        mu: Weight of the proximal term, at least 0; with 0 this is FedAvg. A function of the round makes a schedule.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        server_lr: Server learning rate; a function of the round makes a schedule.
        options: The other arguments of :class:`FedAvg`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        mu: ScheduledWeight,
        clients_per_round: int | float | None = None,
        *,
        server_lr: Scheduled = 1.0,
        **options: Unpack[FedAvgOptions],
    ) -> None:
        self.mu = mu
        super().__init__(clients_per_round, server_lr=server_lr, **options)

    def configure_objective(self) -> LocalObjective:
        """Return the proximal objective."""
        return Proximal(self.mu)
