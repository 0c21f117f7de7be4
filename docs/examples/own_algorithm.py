from fl_lightning import AggregationCallback
from fl_lightning.parts import Momentum, Proximal


class FedProxM(AggregationCallback):
    """A proximal objective for the clients, and momentum for the server."""

    def __init__(self, mu=0.1, clients_per_round=None, **options):
        self.mu = mu
        super().__init__(clients_per_round, **options)

    def configure_algorithm(self):
        return self.compose(objective=Proximal(self.mu), server=Momentum(0.9))
