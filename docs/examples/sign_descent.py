import torch

from fl_lightning.parts import ServerOptimizer


class SignDescent(ServerOptimizer):
    """Moves every parameter by ``lr`` toward the aggregate."""

    def __init__(self, lr):
        self.lr = lr

    def step(self, model, aggregate):
        return model + self.lr * torch.sign(aggregate - model)
