"""Weighted means of clients' vectors, and those of their models for three readings of partial participation.

FedAvg's is :class:`WeightedMean`. Of two clients with 1 and 2 samples, whose models are ``[2, 4]`` and ``[5, 1]``::

    weighted(result)    the first client's ``[2, 4]``, with weight 1: its samples, as the draw noted them in its task
    RunningMean.add     the sum is ``[2, 4]``, and the weights' sum 1
    weighted(result)    the second client's ``[5, 1]``, with weight 2
    RunningMean.add     the sum is ``[12, 6]``, and the weights' sum 3
    RunningMean.pop     the mean is ``[4, 2]``, over the clients of all processes
    finish              to which the server moves
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.base import Aggregation, Weighting
from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult
from fl_lightning.vectors import pieces, sum_dtype

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


class MeanAggregation(Aggregation, ABC):
    """An aggregation that is computed from a weighted mean of one vector of each result.

    Results are merged as they come, on the process that has them. The server calls :meth:`weighted` for each of them,
    and :meth:`finish` when it moves. :meth:`merge` does the same with a list of results; the server does not call it.
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


@dataclass(eq=False)
class WeightedMean(MeanAggregation):
    """The weighted mean of the clients' models, as a running sum.

    ``sum_k p_k w_k / sum_k p_k`` with ``p_k = n_k`` (FedAvg, eq. (3a)) or ``p_k = 1`` (RADFed, eq. (37):
    no sizes are revealed).

    Equations are numbered as in ``docs/references.md``.

    Args:
        weighting: ``"samples"`` or ``"uniform"``.

    Raises:
        ValueError: If ``weighting`` is anything else.
    """

    weighting: Weighting = "samples"
    merges_buffers = True

    @property
    @override
    def is_weighted_mean(self) -> bool:
        # A subclass may merge in another way.
        return type(self) is WeightedMean

    @override
    def weighted(self, result: ClientResult) -> tuple[Tensor, float]:
        """Return a client's model and p_k."""
        return result.vector, self.weight_of(result)


class RunningMean:
    """``sum_k p_k w_k / sum_k p_k`` as a running sum.

    The sum is kept in float64 and divided once, so the result hardly depends on the order of the models or on how many
    processes share them. The mean of a single model is that model, bit for bit: in float64, multiplying by a weight and
    dividing by it would round.
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


class CurrentMean(WeightedMean):
    """The mean over all clients; a client that did not train counts with the server's model (eq. (3c)).

    Equations are numbered as in ``docs/references.md``.

    Args:
        weighting: As for :class:`WeightedMean`.

    Raises:
        ValueError: As for :class:`WeightedMean`; when an algorithm is made, if models circulate, or if the server may
            merge two results of one client at once: a client would count more than once.
    """

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether a client could count more than once."""
        if algorithm.schedule.hides_clients or algorithm.schedule.repeats_in_buffer:
            yield (
                f"`aggregation` cannot be {self!r}, which counts a client once, with {algorithm.schedule!r}. Give "
                "`once_per_buffer=True` or `wait_for_flush=True`, or WeightedMean()."
            )

    @override
    def finish(self, model: Tensor, mean: Tensor, weight: float) -> Tensor:
        """Return the mean in which the other clients count with the server's model."""
        sizes = self.federation.sizes
        weight_of_all = sizes.sum() if self.weighting == "samples" else len(sizes)
        share = weight / float(weight_of_all)
        current = model.to(mean.dtype)
        return current + share * (mean - current)


def hidden_clients(aggregation: Aggregation, algorithm: Algorithm) -> Iterator[str]:
    """Yield why a mean over all clients is none: the server does not see what a single client sends."""
    if algorithm.schedule.hides_clients or algorithm.schedule.asynchronous:
        yield f"`aggregation` cannot be {aggregation!r}, a mean over all clients, with {algorithm.schedule!r}."


class StaleMean(WeightedMean):
    """The mean over all clients; a client that did not train counts with its last local model (eq. (3b)).

    Before its first training, a client counts with the run's first model.

    Equations are numbered as in ``docs/references.md``.

    Args:
        weighting: As for :class:`WeightedMean`.

    Raises:
        ValueError: As for :class:`WeightedMean`; when an algorithm is made, if models circulate or the schedule is
            asynchronous, so that the server never sees a client's own model.
    """

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether the server does not see the model of a single client."""
        return hidden_clients(self, algorithm)

    @override
    def setup(self, federation: Federation) -> None:
        """Give every client the first model."""
        self.last: ClientVectors
        self.add_client_vectors("last", federation.model, federation.weights(self.weighting))

    @override
    def weighted(self, result: ClientResult) -> tuple[Tensor, float]:
        """Renew the client's last model."""
        self.last[result.client] = result.vector
        return super().weighted(result)

    @override
    def finish(self, model: Tensor, mean: Tensor, weight: float) -> Tensor:
        """Return the mean over all clients, float64 of shape ``(size,)``."""
        self.last.commit()
        return self.last.mean
