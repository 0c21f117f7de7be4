import torch

from fl_lightning.parts import MeanAggregation


class NormalizedMean(MeanAggregation):
    """FedNova (Wang et al. 2020) with plain SGD: an update counts by its direction alone."""

    weighting = "samples"

    def weighted(self, result):
        steps = torch.tensor([result.num_steps]).double()
        return torch.cat([result.delta / steps.clamp(min=1), steps]), self.weight_of(result)

    def weight_of(self, result):
        return result.num_samples if result.num_steps else 0

    def finish(self, model, mean, weight):
        direction, steps = mean[:-1], mean[-1]
        return model + steps * direction
