"""The base of aggregations, which answer the question: how are results merged?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult
from fl_lightning.parts.part import Part
from fl_lightning.parts.pieces import pieces
from fl_lightning.vectors import sum_dtype

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
        #: The weighted sum, float64 of shape ``(size,)``; of a single vector, the vector without its weight.
        self._sum: Tensor | None = None
        self._weight = 0.0
        self._number = 0

    def add(self, vector: Tensor, weight: float = 1.0) -> None:
        """Add a vector of shape ``(size,)`` with a weight."""
        if self._sum is None:
            self._sum = vector.detach().to(sum_dtype(vector), copy=True)
        else:
            if self._number == 1:
                self._sum.mul_(self._weight)
            for total, piece in pieces(self._sum, vector):
                total.add_(piece, alpha=weight)
        self._weight += weight
        self._number += 1

    def pop(self, federation: Federation | None = None, like: Tensor | None = None) -> tuple[Tensor | None, float]:
        """Return the mean, float64, and the sum of weights, and forget them; ``None`` as the mean if that sum is 0.

        Args:
            federation: Sums over its processes, in one reduction; ``None`` for this process alone.
            like: A vector of the length and type of those that were added, where nothing was.
        """
        total = self._sum
        weight = self._weight
        is_single = self._number == 1
        self._sum = None
        self._weight = 0.0
        self._number = 0
        if federation is None or federation.num_ranks == 1:
            if total is None or not weight:
                return None, weight
            if is_single:
                return total, weight
            return total.div_(total.new_tensor(weight)), weight

        if total is None:
            if like is None:
                return None, 0.0
            total = torch.zeros(len(like), dtype=sum_dtype(like), device=like.device)
        elif is_single:
            total.mul_(weight)
        with_weight = torch.cat([total, total.new_tensor([weight])])
        with_weight = federation.sum_over_ranks(with_weight)
        weight = float(with_weight[-1])
        if not weight:
            return None, weight
        return with_weight[:-1].div_(with_weight[-1]), weight
