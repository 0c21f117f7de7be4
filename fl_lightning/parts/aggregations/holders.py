"""The mean of each value of the model over the clients that hold it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.base import Weighting
from fl_lightning.parts.aggregations.means import MeanAggregation
from fl_lightning.parts.exchanges.partial import PartialModel
from fl_lightning.parts.messages import ClientResult


@dataclass(eq=False)
class HolderMean(MeanAggregation):
    """Each value becomes the weighted mean over the clients that hold it (HeteroFL, FjORD; eq. (94)).

    A value that no client of the round holds stays as it is. Buffers are merged likewise.

    Equations are numbered as in ``docs/references.md``.

    Args:
        partial: Says what clients hold.
        weighting: Clients count alike as in HeteroFL (``"uniform"``), or in proportion to n_k as in FjORD
            (``"samples"``).
    """

    partial: PartialModel
    weighting: Weighting = "uniform"
    merges_buffers = True

    @override
    def weighted(self, result: ClientResult) -> tuple[Tensor, float]:
        """Return a client's model followed by 1 for each value that it holds and 0 for others, and p_k."""
        held = self.partial.held(result.task)
        if held is None:
            shares = torch.ones_like(result.vector)
            return torch.cat([result.vector, shares]), self.weight_of(result)
        # An attack, or noise, may have changed what the client does not hold.
        return torch.cat([result.vector.where(held, 0), held.to(result.vector.dtype)]), self.weight_of(result)

    @override
    def finish(self, model: Tensor, mean: Tensor, weight: float) -> Tensor:
        """Return the means over holders, and the server's values where there are none."""
        values, shares = mean.split(len(model))
        return torch.where(shares > 0, values / shares, model.to(mean.dtype))
