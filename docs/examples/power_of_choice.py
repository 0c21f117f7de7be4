import numpy as np
import torch

from fl_lightning.parts import ClientSampler


class PowerOfChoice(ClientSampler):
    """Of ``d`` drawn clients the ``m`` with the largest losses train (Cho et al. 2022)."""

    needs_scores = False  # no score after training, at the client's own model

    def __init__(self, m, d):
        self.m, self.d = m, d

    def cohort_size(self, num_clients):
        return self.m

    def clients_without_score(self):
        sizes = torch.from_numpy(self.federation.sizes).double()
        return torch.multinomial(sizes, self.d, generator=self.generator()).tolist()

    def score(self, client):
        return client.loss()

    def take_scores(self, scores):
        self.losses = scores

    def draw(self, num_clients, rng, available=None):
        candidates = [client for client in self.losses if available is None or client in available]
        return np.array(sorted(candidates, key=self.losses.get, reverse=True)[: self.m], dtype=int)
