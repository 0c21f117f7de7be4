"""How results are merged: streaming aggregations in torchmetrics' manner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from fl_lightning.arguments import check_choice
from fl_lightning.federation import ClientResult

Weighting = Literal["samples", "uniform"]


class WeightedMean:
    """The weighted mean of the clients' models, as a running sum.

    ``sum_k p_k w_k / sum_k p_k`` with ``p_k = n_k`` (FedAvg, eq. (3a)) or ``p_k = 1`` (RADFed, eq. (37):
    no sizes are revealed). The sum is kept in float64 and divided once, so the result hardly depends on
    the order of the clients or on how many processes share them.

    Args:
        weighting: ``"samples"`` or ``"uniform"``.

    Raises:
        ValueError: If ``weighting`` is anything else.
    """

    def __init__(self, weighting: Weighting = "samples") -> None:
        check_choice("weighting", weighting, ("samples", "uniform"))
        self.weighting = weighting
        self._sum: Tensor | None = None  # (size + 1,): the weighted sum, then the sum of weights

    def update(self, result: ClientResult) -> None:
        """Add one client's model."""
        weight = float(result.task.num_samples) if self.weighting == "samples" else 1.0
        vector = result.vector
        if self._sum is None:
            self._sum = self._zeros(vector.numel(), vector.device)
        self._sum[:-1].add_(vector, alpha=weight)
        self._sum[-1] += weight

    def reduce(self, sum_over_ranks: Callable[[Tensor], Tensor], size: int, device: torch.device) -> None:
        """Add up the running sums of all processes: one flat reduction.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all processes.
            size: Length of the models, for a process that trained no client.
            device: Where the models are.
        """
        if self._sum is None:
            self._sum = self._zeros(size, device)
        self._sum = sum_over_ranks(self._sum)

    def compute(self) -> Tensor | None:
        """Return the mean, float64 of shape ``(size,)``, or None when nothing with a weight was added."""
        if self._sum is None or self._sum[-1] == 0:
            return None
        return self._sum[:-1] / self._sum[-1]

    def reset(self) -> None:
        """Forget everything that was added."""
        self._sum = None

    @staticmethod
    def _zeros(size: int, device: torch.device) -> Tensor:
        # Apple's GPUs have no float64
        dtype = torch.float32 if device.type == "mps" else torch.float64
        return torch.zeros(size + 1, dtype=dtype, device=device)
