import numpy as np

from fl_lightning.parts import ClientSampler


class RoundRobin(ClientSampler):
    """The next ``m`` clients in turn."""

    def __init__(self, m):
        self.m = m

    def cohort_size(self, num_clients):
        return self.m

    def draw(self, num_clients, rng, available):
        return (self.round * self.m + np.arange(self.m)) % num_clients
