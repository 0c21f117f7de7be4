"""FedExP's mean, beyond which the server steps if clients' updates differ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.base import Weighting
from fl_lightning.parts.aggregations.means import MeanAggregation
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult
from fl_lightning.settings import Positive
from fl_lightning.vectors import sum_dtype


@dataclass(eq=False)
class ExtrapolatedMean(MeanAggregation):
    """FedExP's server step: ``w + eta D``, ``eta = max(1, mean |Delta_k|^2 / (2 (|D|^2 + e)))``, D the mean update.

    Jhunjhunwala et al. 2023; eq. (83). With updates of two clients that are 2 and 0, the mean is 1, the mean square 2,
    and eta 1; with 10 and -8 it is 41. Logs eta as ``fed/extrapolation``.

    Equations are numbered as in ``docs/references.md``.

    Args:
        epsilon: e, which bounds eta where updates cancel out.
        weighting: Clients count alike as in the paper (``"uniform"``), or in proportion to n_k (``"samples"``).

    Attributes:
        extrapolation: eta of the last move.

    Raises:
        ValueError: If an argument is out of its range.
    """

    epsilon: Positive = 1e-3
    weighting: Weighting = "uniform"

    @override
    def setup(self, federation: Federation) -> None:
        self.extrapolation: float
        self.add_state("extrapolation", 1.0)

    @override
    def weighted(self, result: ClientResult) -> tuple[Tensor, float]:
        """Return the client's update followed by its square, and its weight."""
        update = result.delta.to(sum_dtype(result.vector))
        return torch.cat([update, update.dot(update).view(1)]), self.weight_of(result)

    @override
    def finish(self, model: Tensor, mean: Tensor, weight: float) -> Tensor:
        """Return the server's parameters, moved along the mean update, float64 of shape ``(num_parameters,)``."""
        update = mean[:-1]
        square = float(update.dot(update))
        self.extrapolation = max(1.0, float(mean[-1]) / (2 * (square + self.epsilon)))
        return model.to(mean.dtype) + self.extrapolation * update

    @override
    def values(self) -> dict[str, float]:
        return {"fed/extrapolation": self.extrapolation}
