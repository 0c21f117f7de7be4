import torch

from fl_lightning.parts import Aggregation


class CoordinateMedian(Aggregation):
    """The median of each parameter (Yin et al. 2018)."""

    def merge(self, model, results):
        return torch.stack([result.parameters for result in results]).quantile(0.5, dim=0)
