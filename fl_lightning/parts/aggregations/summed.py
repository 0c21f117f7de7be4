"""The sum of updates, where an exchange shows the server no more than that."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.base import Aggregation
from fl_lightning.parts.aggregations.means import MeanAggregation
from fl_lightning.parts.exchanges.base import Exchange
from fl_lightning.parts.messages import ClientResult, same_values
from fl_lightning.vectors import sum_dtype


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

    @override
    def on_round_start(self, round_index: int) -> None:
        """Forget which models clients received."""
        #: The different models that clients received; equal ones are here once.
        self._starts: list[Tensor] = []

    @override
    def weighted(self, result: ClientResult) -> tuple[Tensor, float]:
        """Return a client's update followed by its parameters.

        Raises:
            ValueError: If the client's training changed buffers, which would travel besides the sum.
        """
        self.exchange.check_buffers(result)
        if not any(result.received is start or same_values(result.received, start) for start in self._starts[:2]):
            self._starts.append(result.received)
        return torch.cat([result.delta, result.parameters]), 1.0

    @override
    def finish(self, model: Tensor, mean: Tensor | None, weight: float) -> Tensor | None:
        """Return the moved parameters and the server's buffers, float64 of shape ``(size,)``; ``None`` to stay."""
        layout = self.federation.layout
        current, buffers = layout.split(model.to(sum_dtype(model)))
        received_model = self.federation.gather(self._all_received(model))
        total = torch.zeros_like(current)
        mean_parameters: Tensor | None = None
        if mean is not None:
            # Each result's vector is its update followed by its parameters.
            mean_update, mean_parameters = layout.split(mean)
            total = mean_update * weight
        seen, divisor = self.exchange.on_sum(total, weight)
        if not divisor:
            return None
        is_true_mean = seen is total and weight and divisor == weight
        if mean_parameters is not None and is_true_mean and all(received_model):
            # The mean as it is: the way to the sum of updates and back would round it.
            return layout.joined(mean_parameters, buffers)
        return layout.joined(current + seen / divisor, buffers)

    def _all_received(self, model: Tensor) -> bool:
        """Return whether all clients of this process received the parameters of one model, shape ``(size,)``."""
        sent, _ = self.federation.layout.split(model)
        for start in self._starts:
            received, _ = self.federation.layout.split(start)
            if not same_values(received, sent):
                return False
        return True


def aggregation_for(exchanges: Sequence[Exchange], aggregation: Aggregation) -> Aggregation:
    """Return the aggregation for these exchanges: :class:`SummedUpdates` if one of them shows the server only sums.

    Raises:
        ValueError: If the aggregation is no uniform mean, there are two such exchanges, or the exchange is not the
            last one.
    """
    summing = [member for member in exchanges if member.sums_updates]
    if not summing:
        return aggregation
    is_uniform = aggregation.is_weighted_mean and aggregation.weighting == "uniform"
    if len(summing) > 1 or summing[0] is not exchanges[-1] or not is_uniform:
        raise ValueError(
            f'`exchange` must have {summing[0]!r} once and last, with the aggregation WeightedMean("uniform"): the '
            f"server sees only the sum of the updates; got {list(exchanges)[1:]} and {aggregation!r}."
        )
    return SummedUpdates(summing[0])
