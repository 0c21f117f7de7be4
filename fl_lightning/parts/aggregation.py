"""How results are merged: streaming aggregations in torchmetrics' manner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fl_lightning.arguments import check_choice
from fl_lightning.parts.client_states import ClientStates, StatefulPart, accumulator
from fl_lightning.parts.federation import ClientResult, Federation

Weighting = Literal["samples", "uniform"]


class Aggregation(StatefulPart, ABC):
    """Merges what clients hand back into what the server moves to."""

    @abstractmethod
    def merge(self, model: Tensor) -> Tensor | None:
        """Return what the server is to move to, over all processes, and empty the aggregation.

        Args:
            model: The server's model, shape ``(size,)``.

        Returns:
            Float64 of shape ``(size,)``; None when no client reported.
        """


class WeightedMean(Aggregation):
    """The weighted mean of the clients' models, as a running sum.

    ``sum_k p_k w_k / sum_k p_k`` with ``p_k = n_k`` (FedAvg, eq. (3a)) or ``p_k = 1`` (RADFed, eq. (37):
    no sizes are revealed). The sum is kept in float64 and divided once, so the result hardly depends on
    the order of the clients or on how many processes share them.

    Args:
        weighting: ``"samples"`` or ``"uniform"``.

    Raises:
        ValueError: If ``weighting`` is anything else; if a client's model has another size than the others'.
    """

    def __init__(self, weighting: Weighting = "samples") -> None:
        check_choice("weighting", weighting, ("samples", "uniform"))
        self.weighting = weighting
        self._federation: Federation | None = None
        self._sum: Tensor | None = None  # (size + 1,): the weighted sum, then the sum of weights
        self._parts: tuple[Tensor, Tensor]  # views of the two

    def begin(self, federation: Federation) -> None:
        """Start with nothing added."""
        self._federation = federation
        self._sum = None

    def update(self, result: ClientResult) -> None:
        """Add one client's model."""
        self.add(result.vector, float(result.task.num_samples) if self.weighting == "samples" else 1.0)

    def add(self, vector: Tensor, weight: float) -> None:
        """Add a model with a weight."""
        if self._sum is None:
            self._open(vector)
        values, weights = self._parts
        if vector.shape != values.shape:
            raise ValueError(
                f"A client's model has {len(vector)} values, the others have {len(values)}. All clients must hand back "
                "a model of the server's shape."
            )
        values.add_(vector, alpha=weight)
        weights.add_(weight)

    def _open(self, like: Tensor) -> None:
        self._sum = torch.zeros(len(like) + 1, dtype=accumulator(like), device=like.device)
        self._parts = self._sum[:-1], self._sum[-1]

    def compute(self) -> Tensor | None:
        """Return the mean, float64 of shape ``(size,)``, or None when nothing with a weight was added."""
        if self._sum is None or self._sum[-1] == 0:
            return None
        return self._sum[:-1] / self._sum[-1]

    def merge(self, model: Tensor) -> Tensor | None:
        """Return what the server is to move to, over all processes, and empty the sum: one flat reduction."""
        assert self._federation is not None
        if self._sum is None:
            self._open(model)
        assert self._sum is not None
        self._sum = self._federation.sum_over_ranks(self._sum)
        merged = self._combine(model)
        self._sum = None
        return merged

    def discard(self) -> None:
        """Forget everything that was added."""
        super().discard()
        self._sum = None

    def _combine(self, model: Tensor) -> Tensor | None:
        return self.compute()

    def _weights(self) -> np.ndarray:
        """Return p_k of all clients, shape ``(K,)``."""
        assert self._federation is not None
        sizes = self._federation.sizes
        return sizes.astype(np.float64) if self.weighting == "samples" else np.ones(len(sizes))


class CurrentMean(WeightedMean):
    """The mean over all clients in which those that did not train count with the server's model (eq. (3c))."""

    def _combine(self, model: Tensor) -> Tensor | None:
        mean = self.compute()
        if mean is None or self._sum is None:
            return None
        share = self._sum[-1] / float(self._weights().sum())
        current = model.to(mean.dtype)
        return current + share * (mean - current)


class StaleMean(WeightedMean):
    """The mean over all clients in which those that did not train count with their last local model (eq. (3b)).

    Before a client's first training that is the first model of all.
    """

    def begin(self, federation: Federation) -> None:
        """Give every client the first model."""
        super().begin(federation)
        self.states = ClientStates(federation, federation.model.clone(), self._weights())

    def update(self, result: ClientResult) -> None:
        """Renew the client's last model."""
        super().update(result)  # of these only the weight is needed: whether anybody reported
        self._states.put(result.task.client, result.vector)

    @property
    def _states(self) -> ClientStates:
        assert self.states is not None
        return self.states

    def _combine(self, model: Tensor) -> Tensor | None:
        nobody = self.compute() is None
        self._states.close()
        return None if nobody else self._states.mean
