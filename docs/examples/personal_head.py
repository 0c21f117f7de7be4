import torch

from fl_lightning.parts import ClientStates, Exchange


class PersonalHead(Exchange):
    """FedPer (Arivazhagan et al. 2019): each client keeps the submodule ``head`` for itself."""

    def on_fit_start(self, federation):
        self.mask = federation.mask(federation.matching(["head"]))
        self.states = ClientStates(federation, federation.model[self.mask])

    def download(self, task, model):
        return model.masked_scatter(self.mask, self.states[task.client])

    def upload(self, result):
        self.states.put(result.task.client, result.vector[self.mask])
        return result.with_vector(torch.where(self.mask, result.start, result.vector))

    def travels(self, name):
        return not name.startswith("head.")
