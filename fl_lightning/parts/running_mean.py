"""A weighted mean of models that come one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.parts.federation import Federation, accumulator


class RunningMean:
    """``sum_k p_k w_k / sum_k p_k`` as a running sum.

    The sum is kept in float64 and divided once, so the result hardly depends on the order of the models or on how many
    processes share them. The mean of a single model is that model, bit for bit: in float64, multiplying by a weight and
    dividing by it would round.
    """

    def __init__(self) -> None:
        self._only: tuple[Tensor, float] | None = None  # while there is one vector
        self._sum: Tensor | None = None  # (size + 1,): the weighted sum, then the sum of weights
        self._views: tuple[Tensor, Tensor]  # of the two

    def add(self, vector: Tensor, weight: float = 1.0) -> None:
        """Add a vector of shape ``(size,)`` with a weight.

        Raises:
            ValueError: If it has another size than those before.
        """
        if self._only is None and self._sum is None:
            self._only = vector, weight
            return
        values, weights = self._opened(vector)
        if vector.shape != values.shape:
            raise ValueError(
                f"A client's model has {len(vector)} values, the others have {len(values)}. All clients must hand back "
                "a model of the server's shape."
            )
        values.add_(vector, alpha=weight)
        weights.add_(weight)

    def _opened(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the running sum and the sum of weights, as vectors add to them in place."""
        if self._sum is None:
            first = like if self._only is None else self._only[0]
            self._sum = torch.zeros(len(first) + 1, dtype=accumulator(first), device=first.device)
            self._views = self._sum[:-1], self._sum[-1]
            if self._only is not None:
                self._views[0].add_(self._only[0], alpha=self._only[1])
                self._views[1].add_(self._only[1])
                self._only = None
        return self._views

    def compute(self) -> Tensor | None:
        """Return the mean, float64 of shape ``(size,)``; ``None`` when nothing with a weight was added."""
        if self._only is not None:
            vector, weight = self._only
            return vector.to(accumulator(vector)) if weight else None
        if self._sum is None or self._sum[-1] == 0:
            return None
        return self._sum[:-1] / self._sum[-1]

    def take(self, federation: Federation, like: Tensor) -> tuple[Tensor | None, Tensor]:
        """Empty the sum; return the mean over all processes and the sum of weights: one flat reduction.

        Args:
            federation: The run.
            like: A vector of the size and type of those that were added, where nothing was.
        """
        if self._only is not None and federation.num_ranks == 1:
            mean, weight = self.compute(), self._only[1]
            self.reset()
            return mean, torch.tensor(weight, dtype=accumulator(like), device=like.device)
        self._opened(like)
        assert self._sum is not None
        self._sum = federation.sum_over_ranks(self._sum)
        mean, total = self.compute(), self._sum[-1]
        self.reset()
        return mean, total

    def reset(self) -> None:
        """Forget everything that was added."""
        self._only = self._sum = None
