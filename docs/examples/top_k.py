import torch

from fl_lightning.parts import ClientStates, Exchange


class TopK(Exchange):
    """Sends the largest values of an update; the client adds what it left out to its next one (Stich et al. 2018)."""

    def __init__(self, k):
        self.k = k

    def on_fit_start(self, federation):
        self.states = ClientStates(federation, torch.zeros_like(federation.model[: federation.num_parameters]))

    def upload(self, result):
        client = result.task.client
        update = result.delta + self.states[client]
        largest = update.abs().topk(self.k).indices
        sent = torch.zeros_like(update).index_copy(0, largest, update[largest])
        self.states.put(client, update - sent)
        return result.with_delta(sent, result.payload.sparse(self.k, of=len(update)))
