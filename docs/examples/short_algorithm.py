from fl_lightning import Federated
from fl_lightning.parts import Momentum, Proximal


class ShortFedProxM(Federated):
    """The same algorithm: `Federated` fills in FedAvg's parts."""

    def __init__(self, mu=0.1, clients_per_round=None, **options):
        self.mu = mu
        super().__init__(clients_per_round, objective=Proximal(mu), server=Momentum(0.9), **options)
