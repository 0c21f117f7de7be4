"""The base of aggregations, which answer the question: how are results merged?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult, accumulator
from fl_lightning.parts.part import Part

Weighting = Literal["samples", "uniform"]


class Aggregation(Part, ABC):
    """Merges results into the model to which the server moves.

    The results are those that the server has taken: in synchronous rounds one for each client, with redistribution one
    for each circulating model when its cycle ends, with an asynchronous schedule those in the buffer when it is full.

    An aggregation that follows from a weighted mean is a :class:`MeanAggregation`, which keeps one model in memory
    instead of all.
    """

    #: Whether :meth:`merge` also merges the module's buffers. Otherwise the server takes the mean of the clients'
    #: buffers, weighted by :meth:`weight_of`.
    merges_buffers = False
    #: Clients count in proportion to their numbers of samples if it is ``"samples"``, else alike. SCAFFOLD's server
    #: weighs control variates likewise.
    weighting: str = "uniform"
    #: Whether :attr:`ClientResult.summed_lr` is needed.
    needs_summed_lr = False
    #: Whether it divides by the clients' learning rate, which must then be the same in all steps of a round.
    needs_one_rate = False
    #: The momentum of the clients' SGD, where it counts on the steps of that optimizer; ``None`` if any will do.
    counts_on_momentum: float | None = None

    @property
    def is_weighted_mean(self) -> bool:
        """Whether it takes the mean of the clients' models, weighted by :attr:`weighting`, and does nothing else."""
        return False

    @abstractmethod
    def merge(self, model: Tensor, results: Sequence[ClientResult]) -> Tensor | None:
        """Return the model to which the server moves.

        Args:
            model: The server's parameters, shape ``(num_parameters,)``, or its whole model, shape ``(size,)``, if the
                aggregation :attr:`merges_buffers`; not to be written to.
            results: The results of all processes' clients, at least one, in the order of slots or of arrival.

        Returns:
            The moved ``model``, float64 where precision matters; ``None`` if the server is to stay.
        """

    def weight_of(self, result: ClientResult) -> float:
        """Return how much a result counts, its parameters and its buffers alike: by default by :attr:`weighting`."""
        return result.weight(self.weighting)


class MeanAggregation(Aggregation, ABC):
    """An aggregation that is computed from a weighted mean of one vector of each result.

    Results are merged as they come, on the process that has them.
    """

    #: Whether the server may move without a result; :meth:`finish` then gets ``None`` as the mean.
    acts_alone = False

    @abstractmethod
    def weighted(self, result: ClientResult) -> tuple[Tensor, float]:
        """Return a result's vector, always of the same length, and its weight; 0 leaves it out."""

    def finish(self, model: Tensor, mean: Tensor, weight: float) -> Tensor | None:
        """Return the model to which the server moves; ``None`` if it is to stay.

        Args:
            model: As for :meth:`merge`.
            mean: The mean over all processes' results, float64.
            weight: The sum of their weights.
        """
        return mean

    @override
    def merge(self, model: Tensor, results: Sequence[ClientResult]) -> Tensor | None:
        """Return the model to which the server moves, given a list of results."""
        running = RunningMean()
        for result in results:
            running.add(*self.weighted(result))
        mean, weight = running.pop()
        return None if mean is None else self.finish(model, mean, weight)


class RunningMean:
    """``sum_k p_k w_k / sum_k p_k`` as a running sum.

    The sum is kept in float64 and divided once, so the result hardly depends on the order of the models or on how many
    processes share them. The mean of a single model is that model, bit for bit: in float64, multiplying by a weight and
    dividing by it would round.

    For example, of ``[2, 4]`` with weight 1 and ``[5, 1]`` with weight 2 the sum is ``[12, 6]`` with weight 3, and the
    mean ``[4, 2]``.
    """

    def __init__(self) -> None:
        #: The vector and its weight, while there is one alone.
        self._only: tuple[Tensor, float] | None = None
        #: The weighted sum, followed by the sum of weights, shape ``(size + 1,)``.
        self._sum: Tensor | None = None

    def add(self, vector: Tensor, weight: float = 1.0) -> None:
        """Add a vector of shape ``(size,)`` with a weight."""
        if self._only is None and self._sum is None:
            self._only = vector, weight
            return
        total = self._running_sum(vector)
        total[:-1].add_(vector, alpha=weight)
        total[-1] += weight

    def _running_sum(self, like: Tensor) -> Tensor:
        """Return the running sum, to which vectors are added in place."""
        if self._sum is None:
            first = like if self._only is None else self._only[0]
            self._sum = torch.zeros(len(first) + 1, dtype=accumulator(first), device=first.device)
            if self._only is not None:
                self._sum[:-1].add_(self._only[0], alpha=self._only[1])
                self._sum[-1] += self._only[1]
                self._only = None
        return self._sum

    def pop(self, federation: Federation | None = None, like: Tensor | None = None) -> tuple[Tensor | None, float]:
        """Return the mean, float64, and the sum of weights, and forget them; ``None`` as the mean if that sum is 0.

        Args:
            federation: Sums over its processes, in one reduction; ``None`` for this process alone.
            like: A vector of the length and type of those that were added, where nothing was.
        """
        if self._only is not None and (federation is None or federation.num_ranks == 1):
            vector, weight = self._only
            self._only = None
            if not weight:
                return None, weight
            return vector.to(accumulator(vector)), weight
        total = self._sum
        if total is None:
            first = self._only[0] if self._only else like
            if first is None:
                return None, 0.0
            total = self._running_sum(first)
        self._sum = None
        if federation is not None:
            total = federation.sum_over_ranks(total)
        weight = float(total[-1])
        if not weight:
            return None, weight
        return total[:-1] / total[-1], weight
