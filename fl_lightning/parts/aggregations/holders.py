"""The mean of each value of the model over the clients that hold it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.base import Weighting
from fl_lightning.parts.aggregations.means import MeanAggregation
from fl_lightning.parts.exchanges.partial import PartialModel
from fl_lightning.parts.messages import ClientResult

Padding = Literal["counts", "zeros"]


def with_shares(vector: Tensor, held: Tensor | None) -> Tensor:
    """Return what of a vector is held, followed by 1 for each value that is and 0 for others."""
    if held is None:
        return torch.cat([vector, torch.ones_like(vector)])
    # An attack, or noise, may have changed what the client does not hold.
    return torch.cat([vector.where(held, 0), held.to(vector.dtype)])


def mean_of_holders(mean: Tensor, current: Tensor, padding: Padding) -> Tensor:
    """Return the values to which the server moves, given the mean of what :func:`with_shares` returned.

    Args:
        mean: Shape ``(2 * size,)``.
        current: The server's values, shape ``(size,)``; they stay where nobody holds them.
        padding: As for :class:`HolderMean`.
    """
    values, shares = mean.split(len(current))
    if padding == "counts":
        values = values / shares
    return torch.where(shares > 0, values, current.to(mean.dtype))


@dataclass(eq=False)
class HolderMean(MeanAggregation):
    """Each value becomes the weighted mean over the clients that hold it (HeteroFL, FjORD; eq. (94)).

    A value that no client of the round holds stays as it is. Buffers are merged likewise.

    Equations are numbered as in ``docs/references.md``.

    Args:
        partial: Says what clients hold.
        weighting: Clients count alike as in HeteroFL (``"uniform"``), or in proportion to n_k as in FjORD
            (``"samples"``).
        padding: ``"counts"`` takes the mean over those that hold a value, ``"zeros"`` over all, the others with 0.
    """

    partial: PartialModel
    weighting: Weighting = "uniform"
    padding: Padding = "counts"
    merges_buffers = True

    @override
    def weighted(self, result: ClientResult) -> tuple[Tensor, float]:
        """Return a client's model with what it holds, and p_k."""
        return with_shares(result.vector, self.partial.held(result.task)), self.weight_of(result)

    @override
    def finish(self, model: Tensor, mean: Tensor, weight: float) -> Tensor:
        """Return the means over holders, and the server's values where there are none."""
        return mean_of_holders(mean, model, self.padding)
