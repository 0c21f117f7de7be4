"""The mean of updates when the server sees only their sum."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.parts.aggregation import Aggregation, WeightedMean
from fl_lightning.parts.exchange.base import Exchange
from fl_lightning.parts.federation import ClientResult, Federation, accumulator, same_values
from fl_lightning.parts.guards.contracts import call_for_sum
from fl_lightning.parts.running_mean import RunningMean


class SummedUpdates(Aggregation):
    """Moves the server by the sum of the clients' updates divided by their number. An exchange gives both.

    An update is the change of the model that the client received, which a compression on the way down makes another
    one than the server's. A round in which nobody trained moves nothing, unless the exchange has another divisor.

    Args:
        exchange: Gives the sum and the number that the server sees; see :meth:`Exchange.summed`.
    """

    reduces_over_ranks = True
    merges_buffers = True

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._mean, self._models = RunningMean(), RunningMean()
        self._starts: list[Tensor] = []  # models that clients received, those that are equal once

    def on_fit_start(self, federation: Federation) -> None:
        """Start with nothing added."""
        self._reset()

    def update(self, result: ClientResult) -> None:
        """Add a client's update.

        Raises:
            ValueError: If the client's training changed buffers, which would travel beside the sum.
        """
        if result.changes_buffers:
            raise ValueError(
                f"Training changes buffers of the module, such as BatchNorm's statistics, and "
                f"{type(self.exchange).__name__} protects only trained parameters: buffers would tell the server what "
                'it must not see. Give `buffers="server"`, which drops the clients\' buffers, or use layers without '
                "statistics, such as GroupNorm."
            )
        self._mean.add(result.delta)
        self._models.add(result.parameters)
        if not any(result.start is start or same_values(result.start, start) for start in self._starts[:2]):
            self._starts.append(result.start)

    def merge(self, model: Tensor) -> Tensor | None:
        """Return the moved parameters and the server's buffers, float64 of shape ``(size,)``; ``None`` to stay."""
        n, current = self.federation.num_parameters, model.to(accumulator(model))
        received = self.federation.gather(all(same_values(start[:n], model[:n]) for start in self._starts))
        mean, weight = self._mean.take(self.federation, model[:n])
        models, _ = self._models.take(self.federation, model[:n])
        self._starts, count = [], float(weight)
        total = torch.zeros_like(current[:n]) if mean is None else mean * count
        seen, divisor = call_for_sum(self.exchange, total, count)
        if not divisor:
            return None
        if seen is total and models is not None and divisor == count and all(received):
            return torch.cat([models, current[n:]])  # as it is: the way to the sum and back would round it
        return torch.cat([current[:n] + seen / divisor, current[n:]])

    def on_round_abort(self) -> None:
        """Forget everything that was added."""
        super().on_round_abort()
        self._reset()

    def _reset(self) -> None:
        self._mean.reset()
        self._models.reset()
        self._starts = []


def of_sums(exchange: Exchange, aggregation: Aggregation) -> Aggregation:
    """Return the aggregation that replaces a uniform mean if one of the exchanges shows the server only sums.

    Raises:
        ValueError: If the aggregation is no uniform mean, there are two such exchanges, or the exchange is not the
            last one.
    """
    members: list[Exchange] = getattr(exchange, "members", [exchange])
    summing = [member for member in members if member.sums_updates]
    if not summing:
        return aggregation
    name = type(summing[0]).__name__
    if len(summing) > 1:
        raise ValueError(
            f"`exchange` has {' and '.join(type(member).__name__ for member in summing)}, each of which shows the "
            "server its own sum of the updates: noise inside of a secure sum, such as the distributed discrete "
            "Gaussian, is not offered. Give one of them; LocalDifferentialPrivacy may stand before SecureAggregation."
        )
    if summing[0] is not members[-1]:
        raise ValueError(
            f"`exchange` has {members[-1]!r} after {name}, which must see updates as they reach the server. Put {name} "
            "last."
        )
    if type(aggregation) is not WeightedMean or aggregation.weighting != "uniform":
        raise ValueError(
            f"{name} gives the server only the sum of all updates, in which all clients have the same weight, so "
            f'{aggregation!r} cannot merge them. Give `weighting="uniform"`, and no `aggregation`, `partial` or '
            "algorithm with its own mean."
        )
    return SummedUpdates(summing[0])
