from dataclasses import dataclass

from fl_lightning import AggregationCallback
from fl_lightning.parts import Momentum, Proximal


@dataclass(eq=False, repr=False)
class FedProxM(AggregationCallback):
    """A proximal objective for the clients, and momentum for the server."""

    mu: float = 0.1
    clients_per_round: int | float | None = None

    def configure_algorithm(self):
        return self.compose(objective=Proximal(self.mu), server_optimizer=Momentum(0.9))
