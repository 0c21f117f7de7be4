"""How results are merged: a function of the results, or of a weighted mean that is taken as they come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fl_lightning.checks import Fraction, NotNegative, Positive
from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.exchange import Exchange
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult, accumulator, same_values
from fl_lightning.parts.objectives import MeasuredLoss, Proximal, effective_steps
from fl_lightning.parts.part import Part

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm

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
    """

    def __init__(self) -> None:
        self._only: tuple[Tensor, float] | None = None  # while there is one vector
        self._sum: Tensor | None = None  # (size + 1,): the weighted sum, then the sum of weights

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
            (vector, weight), self._only = self._only, None
            return (vector.to(accumulator(vector)) if weight else None), weight
        first = self._only[0] if self._only else like
        total = self._sum
        if total is None:
            if first is None:
                return None, 0.0
            total = self._running_sum(first)
        self._sum = None
        total = total if federation is None else federation.sum_over_ranks(total)
        weight = float(total[-1])
        return (total[:-1] / total[-1] if weight else None), weight


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

    def weighted(self, result: ClientResult) -> tuple[Tensor, float]:
        """Return a client's model and p_k."""
        return result.vector, self.weight_of(result)


class CurrentMean(WeightedMean):
    """The mean over all clients; a client that did not train counts with the server's model (eq. (3c)).

    Equations are numbered as in ``docs/references.md``.

    Args:
        weighting: As for :class:`WeightedMean`.

    Raises:
        ValueError: As for :class:`WeightedMean`; when an algorithm is made, if models circulate, or if the server may
            merge two results of one client at once: a client would count more than once.
    """

    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether a client could count more than once."""
        if algorithm.schedule.circulates or algorithm.schedule.repeats_in_buffer:
            yield (
                f"`aggregation` cannot be {self!r}, which counts a client once, with {algorithm.schedule!r}. Give "
                "`once_per_buffer=True` or `wait_for_flush=True`, or WeightedMean()."
            )

    def finish(self, model: Tensor, mean: Tensor, weight: float) -> Tensor:
        """Return the mean in which the other clients count with the server's model."""
        sizes = self.federation.sizes
        share = weight / float(sizes.sum() if self.weighting == "samples" else len(sizes))
        current = model.to(mean.dtype)
        return current + share * (mean - current)


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

    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether the server does not see the model of a single client."""
        if algorithm.schedule.circulates or algorithm.schedule.asynchronous:
            yield f"`aggregation` cannot be {self!r}, a mean over all clients, with {algorithm.schedule!r}."

    def setup(self, federation: Federation) -> None:
        """Give every client the first model."""
        self.last: ClientVectors
        self.add_client_vectors("last", federation.model, federation.weights(self.weighting))

    def weighted(self, result: ClientResult) -> tuple[Tensor, float]:
        """Renew the client's last model."""
        self.last[result.client] = result.vector
        return super().weighted(result)

    def finish(self, model: Tensor, mean: Tensor, weight: float) -> Tensor:
        """Return the mean over all clients, float64 of shape ``(size,)``."""
        self.last.commit()
        return self.last.mean


@dataclass(eq=False)
class NormalizedMean(MeanAggregation):
    """FedNova's mean: ``w + tau_eff sum_k p_k Delta_k / |a_k|`` with ``tau_eff = sum_k p_k |a_k|`` (Wang et al. 2020).

    ``|a_k|`` is the distance that a client's steps cover along a constant gradient, in units of learning rate times
    gradient. With plain SGD it is the number of steps. A client with more steps does not count for more, and the server
    converges to the optimum of ``sum_k p_k F_k``, which does not depend on the numbers of steps.

    Args:
        momentum: rho of the clients' SGD, in [0, 1).
        mu: Weight of the clients' proximal term, at least 0.
        weighting: p_k in proportion to n_k (``"samples"``), or equal (``"uniform"``).

    Raises:
        ValueError: If an argument is out of its range; when an algorithm is made, if models circulate and ``momentum``
            or ``mu`` is given, since their steps do not add up over clients, or if ``mu`` is not that of the clients'
            objective.
    """

    momentum: Fraction = 0.0
    mu: NotNegative = 0.0
    weighting: Weighting = "samples"

    @property
    def needs_summed_lr(self) -> bool:  # type: ignore[override]
        """Whether the clients' learning rates are needed: with a proximal term they decide on the reach."""
        return self.mu > 0

    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether the reach of the clients' steps would be another one."""
        mu = algorithm.objective.mu if isinstance(algorithm.objective, Proximal) else 0.0
        if algorithm.schedule.circulates and (self.momentum or self.mu or mu):
            yield f"{self!r} cannot merge circulating models with `momentum` or `mu`: steps of a cycle do not add up."
        if mu != self.mu:
            yield f"`mu` of {self!r} must be the same number as that of the objective, got {algorithm.objective!r}."

    def weight_of(self, result: ClientResult) -> float:
        """Return p_k; 0 for a client that made no step."""
        return super().weight_of(result) if result.num_steps else 0.0

    def reach(self, steps: int, lr: float = 0.0) -> float:
        """Return |a| of so many steps with the learning rate ``lr``, which matters with a proximal term only."""
        return effective_steps(steps, self.momentum, lr * self.mu)

    def weighted(self, result: ClientResult) -> tuple[Tensor, float]:
        """Return ``Delta_k / |a_k|`` followed by ``|a_k|``, and p_k."""
        reach = self.reach(result.num_steps, max(result.summed_lr, default=0.0) / max(result.num_steps, 1))
        kind, n = accumulator(result.vector), len(result.parameters)
        moved = result.parameters.to(kind) - result.start[:n].to(kind)
        return torch.cat([moved / (reach or 1.0), moved.new_tensor([reach])]), self.weight_of(result)

    def finish(self, model: Tensor, mean: Tensor, weight: float) -> Tensor:
        """Return the server's parameters moved by the normalised updates, float64 of shape ``(num_parameters,)``."""
        return model.to(mean.dtype) + mean[-1] * mean[:-1]


@dataclass(eq=False)
class FairMean(MeanAggregation):
    """q-FedAvg's update (Li et al. 2020, Fair Resource Allocation, Algorithm 2): clients with larger losses count more.

    With ``d_k = L (w - w_k)`` the server moves to ``w - sum_k F_k^q d_k / sum_k (q F_k^(q-1) |d_k|^2 + L F_k^q)``, F_k
    the client's loss at the model that it received. With q = 0 this is the plain mean of the clients' models.

    Args:
        q: At least 0; the larger, the more uniform the clients' losses become.
        measured: The clients' objective, which computes F_k.
        lipschitz: L, greater than 0; 1 over the clients' learning rate if ``None``, as in the paper.

    Raises:
        TypeError: If ``measured`` is no :class:`MeasuredLoss`.
        ValueError: If an argument is out of its range; when an algorithm is made, if its objective is not ``measured``,
            or models circulate: they have no loss of one client; in a round, if a loss is negative.
    """

    q: NotNegative
    measured: MeasuredLoss
    lipschitz: Positive | None = None

    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether results do not come with the loss of their client."""
        if algorithm.objective is not self.measured or algorithm.schedule.circulates:
            yield f"{self!r} needs `measured` as the algorithm's objective, and models that do not circulate."

    def weight_of(self, result: ClientResult) -> float:
        """Return F_k^q; 0 for a client that made no step, or all with a learning rate of 0."""
        stepped = result.num_steps and max(result.summed_lr, default=0.0)
        return self._power(result, self.q) if stepped else 0.0

    def weighted(self, result: ClientResult) -> tuple[Tensor, float]:
        """Return ``F^q d`` followed by the denominator's addend, and whether the client counts."""
        weight, kind, n = self.weight_of(result), accumulator(result.vector), len(result.parameters)
        steepness = self.lipschitz or (result.num_steps / max(result.summed_lr) if weight else 0.0)
        way = steepness * (result.start[:n].to(kind) - result.parameters.to(kind))
        slope = self.q * self._power(result, self.q - 1) if weight else 0.0
        addend = slope * way.square().sum() + steepness * weight
        return torch.cat([way * weight, addend.view(1)]), float(weight > 0)

    def _power(self, result: ClientResult, exponent: float) -> float:
        loss = result.loss
        assert loss is not None  # the objective is `measured`
        if loss < 0:
            raise ValueError(f"`q` needs losses of at least 0, got {loss:g} from client {result.client}.")
        return float(max(loss, 1e-10) ** exponent)  # as in the authors' code: a power of 0 may be infinite

    def finish(self, model: Tensor, mean: Tensor, weight: float) -> Tensor:
        """Return the server's parameters moved by the weighted updates, float64 of shape ``(num_parameters,)``."""
        return model.to(mean.dtype) - mean[:-1] / mean[-1]


class SummedUpdates(MeanAggregation):
    """Moves the server by the sum of the clients' updates divided by their number. An exchange gives both.

    An update is the change of the model that the client received, which a compression on the way down makes another
    one than the server's. A round in which nobody trained moves nothing, unless the exchange has another divisor.

    Args:
        exchange: Gives the sum and the number that the server sees; see :meth:`Exchange.on_sum`.
    """

    merges_buffers = True
    acts_alone = True

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    def on_round_start(self, round_index: int) -> None:
        """Forget which models clients received."""
        self._starts: list[Tensor] = []  # those that are equal once

    def weighted(self, result: ClientResult) -> tuple[Tensor, float]:
        """Return a client's update followed by its parameters.

        Raises:
            ValueError: If the client's training changed buffers, which would travel besides the sum.
        """
        self.exchange.check_buffers(result)
        if not any(result.start is start or same_values(result.start, start) for start in self._starts[:2]):
            self._starts.append(result.start)
        return torch.cat([result.delta, result.parameters]), 1.0

    def finish(self, model: Tensor, mean: Tensor | None, weight: float) -> Tensor | None:
        """Return the moved parameters and the server's buffers, float64 of shape ``(size,)``; ``None`` to stay."""
        n, current = self.federation.num_parameters, model.to(accumulator(model))
        received = self.federation.gather(all(same_values(start[:n], model[:n]) for start in self._starts))
        total = torch.zeros_like(current[:n]) if mean is None else mean[:n] * weight
        seen, divisor = self.exchange.on_sum(total, weight)
        if not divisor:
            return None
        if mean is not None and seen is total and weight and divisor == weight and all(received):
            return torch.cat([mean[n:], current[n:]])  # as it is: the way to the sum and back would round it
        return torch.cat([current[:n] + seen / divisor, current[n:]])


def aggregation_for(exchanges: Sequence[Exchange], aggregation: Aggregation) -> Aggregation:
    """Return the aggregation for these exchanges: :class:`SummedUpdates` if one of them shows the server only sums.

    Raises:
        ValueError: If the aggregation is no uniform mean, there are two such exchanges, or the exchange is not the
            last one.
    """
    summing = [member for member in exchanges if member.sums_updates]
    if not summing:
        return aggregation
    is_uniform = type(aggregation) is WeightedMean and aggregation.weighting == "uniform"
    if len(summing) > 1 or summing[0] is not exchanges[-1] or not is_uniform:
        raise ValueError(
            f'`exchange` must have {summing[0]!r} once and last, with the aggregation WeightedMean("uniform"): the '
            f"server sees only the sum of the updates; got {list(exchanges)[1:]} and {aggregation!r}."
        )
    return SummedUpdates(summing[0])
