import torch

from fl_lightning.parts import Exchange


class TopK(Exchange):
    """Sends the largest values of an update, and the rest later (Stich et al. 2018)."""

    def __init__(self, k):
        self.k = k

    def setup(self, federation):
        self.add_client_vectors("owed", federation.zeros())

    def upload(self, result):
        update = result.delta + self.owed[result.client]
        largest = update.abs().topk(self.k).indices
        sent = torch.zeros_like(update).index_copy(0, largest, update[largest])
        self.owed[result.client] = update - sent
        return result.with_delta(sent, result.payload.sparse(self.k, of=len(update)))
