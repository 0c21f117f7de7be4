import torch

from fl_lightning.parts import Exchange


class PersonalHead(Exchange):
    """FedPer (Arivazhagan et al. 2019): each client keeps the submodule ``head`` for itself."""

    stacks = True  # what ``upload`` keeps of a client, ``download`` gives to this client alone

    def setup(self, federation):
        self.mask = federation.mask(federation.matching(["head"]))
        self.add_client_vectors("heads", federation.model[self.mask])

    def download(self, task, model):
        return model.masked_scatter(self.mask, self.heads[task.client])

    def upload(self, result):
        self.heads[result.client] = result.vector[self.mask]
        return result.with_vector(torch.where(self.mask, result.received, result.vector))

    def travels(self, name):
        return not name.startswith("head.")
