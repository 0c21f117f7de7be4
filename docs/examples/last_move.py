from fl_lightning.parts import LocalObjective, ServerOptimizer, Term


class Remembers(ServerOptimizer):
    """Takes the aggregate, and remembers the way to it."""

    def setup(self, federation):
        self.add_state("move", None)

    def step(self, model, aggregate):
        self.move = aggregate - model
        return aggregate


class LastMove(LocalObjective):
    """Mixes the last move into gradients (FedCM, Xu et al. 2021); ``reach`` is lr x steps."""

    def __init__(self, server, weight, reach):
        self.server, self.weight, self.reach = server, weight, reach

    def correction(self, client):
        if self.server.move is None:
            return None
        return Mixed(pull=self.weight, linear=-self.server.move / self.reach)


class Mixed(Term):
    def add(self, parameters, start, linear):
        for parameter, direction in zip(parameters, linear):
            parameter.grad.mul_(1 - self.pull).add_(direction, alpha=self.pull)
