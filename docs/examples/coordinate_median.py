import torch

from fl_lightning.parts import Aggregation


class CoordinateMedian(Aggregation):
    """The median of each parameter (Yin et al. 2018)."""

    def __init__(self):
        self.parameters = []

    def update(self, result):
        self.parameters.append(result.parameters)

    def merge(self, model):
        parameters, self.parameters = self.parameters, []
        return torch.stack(parameters).quantile(0.5, dim=0) if parameters else None
