"""The base of aggregations, which answer the question: how are results merged?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from fl_lightning.parts.messages import ClientResult
from fl_lightning.parts.part import Part

Weighting = Literal["samples", "uniform"]


class Aggregation(Part, ABC):
    """Merges results into the model to which the server moves.

    The results are those that the server has taken: in synchronous rounds one for each client, with redistribution one
    for each circulating model when its cycle ends, with an asynchronous schedule those in the buffer when it is full.

    An aggregation that follows from a weighted mean is a :class:`MeanAggregation`, as FedAvg's is. It keeps one model
    in memory instead of all: the server calls its ``weighted`` and ``finish``, and never :meth:`merge`.
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
