"""FedProx: FedAvg with a proximal term in the clients' objective."""

from dataclasses import dataclass

from fl_lightning.algorithms.fedavg import AveragingCallback
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.objectives.proximal import Proximal
from fl_lightning.settings import ScheduledWeight


@dataclass(eq=False, repr=False)
class FedProx(AveragingCallback):
    """FedProx (Li et al. 2020; eq. (4)): clients minimise ``F_k(w) + mu/2 |w - w_t|^2``; the server is FedAvg's.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`FedAvg`.

    Args:
        mu: Weight of the proximal term, at least 0; with 0 this is FedAvg. A function of the round makes a schedule.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        server_lr: Server learning rate; a function of the round makes a schedule.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> algorithm = FedProx(mu=0.1, clients_per_round=2, local_epochs=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    mu: ScheduledWeight
    clients_per_round: int | float | None = None

    def configure_objective(self) -> LocalObjective:
        """Return the proximal objective."""
        return Proximal(self.mu)
