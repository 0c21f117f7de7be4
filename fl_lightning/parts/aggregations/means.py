"""Means of clients' models, for three readings of partial participation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.base import MeanAggregation, Weighting
from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


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
        if algorithm.schedule.circulates or algorithm.schedule.repeats_in_buffer:
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
        if algorithm.schedule.circulates or algorithm.schedule.asynchronous:
            yield f"`aggregation` cannot be {self!r}, a mean over all clients, with {algorithm.schedule!r}."

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
