from functools import partial

from fl_lightning.parts import ChangedLoss, LocalObjective


class KeptFeatures(LocalObjective):
    """F_k(w) + mu |z - z'|^2, the mean over samples, with features z, and z' those of the received model."""

    def __init__(self, mu):
        self.mu = mu

    def correction(self, client):
        return ChangedLoss(loss=partial(self.with_term, client.received))

    def with_term(self, received, loss, forward):
        before, _ = forward.of(received)
        return loss + self.mu * (forward.features - before).square().sum(dim=1).mean()
