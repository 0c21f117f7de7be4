from fl_lightning.parts import LocalObjective, Term


class HuberAnchor(LocalObjective):
    """F_k(w) + mu huber(w - w'), with w' the received model: far away it pulls no harder."""

    def __init__(self, mu):
        self.mu = mu

    def correction(self, client):
        return HuberPull(self.mu)


class HuberPull(Term):
    def add(self, parameters, start, linear):
        for parameter, received in zip(parameters, start):
            drift = parameter.detach() - received
            parameter.grad.add_(drift.clamp(-1, 1), alpha=self.pull)
