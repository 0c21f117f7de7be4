"""A weighted mean of models that come one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.parts.federation import Federation, accumulator


class RunningMean:
    """``sum_k p_k w_k / sum_k p_k`` as a running sum.

    The sum is kept in float64 and divided once, so the result hardly depends on the order of the models or on how many
    processes share them.
    """

    def __init__(self) -> None:
        self._sum: Tensor | None = None  # (size + 1,): the weighted sum, then the sum of weights
        self._views: tuple[Tensor, Tensor]  # of the two

    def add(self, vector: Tensor, weight: float = 1.0) -> None:
        """Add a vector of shape ``(size,)`` with a weight.

        Raises:
            ValueError: If it has another size than those before.
        """
        if self._sum is None:
            self._open(vector)
        values, weights = self._views
        if vector.shape != values.shape:
            raise ValueError(
                f"A client's model has {len(vector)} values, the others have {len(values)}. All clients must hand back "
                "a model of the server's shape."
            )
        values.add_(vector, alpha=weight)
        weights.add_(weight)

    def _open(self, like: Tensor) -> Tensor:
        self._sum = torch.zeros(len(like) + 1, dtype=accumulator(like), device=like.device)
        self._views = self._sum[:-1], self._sum[-1]
        return self._sum

    def compute(self) -> Tensor | None:
        """Return the mean, float64 of shape ``(size,)``; ``None`` when nothing with a weight was added."""
        if self._sum is None or self._sum[-1] == 0:
            return None
        return self._sum[:-1] / self._sum[-1]

    def take(self, federation: Federation, like: Tensor) -> tuple[Tensor | None, Tensor]:
        """Empty the sum; return the mean over all processes and the sum of weights: one flat reduction.

        Args:
            federation: The run.
            like: A vector of the size and type of those that were added, where nothing was.
        """
        total = federation.sum_over_ranks(self._open(like) if self._sum is None else self._sum)
        self._sum = total
        mean, weight = self.compute(), total[-1]
        self._sum = None
        return mean, weight

    def reset(self) -> None:
        """Forget everything that was added."""
        self._sum = None
