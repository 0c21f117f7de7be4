"""MIFA's mean over all clients' last updates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.base import Weighting
from fl_lightning.parts.aggregations.means import MeanAggregation, hidden_clients
from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


@dataclass(eq=False)
class RememberedUpdates(MeanAggregation):
    """MIFA's server step: ``w - eta_t mean_k G_k`` over all clients, G_k the last ``(w - w_k) / eta`` of client k.

    Gu et al. 2021; eq. (84), (85). Before its first training a client counts with 0; the paper lets all clients train
    in the first round. eta is the learning rate of the clients' optimizers in the round. A round in which nobody
    reports moves nothing. Buffers are the mean of the round's clients'.

    Equations are numbered as in ``docs/references.md``.

    Args:
        weighting: Clients count alike as in the paper (``"uniform"``), or in proportion to n_k (``"samples"``).

    Attributes:
        gradients: Every client's -G_k.

    Raises:
        ValueError: When an algorithm is made, if models circulate or the schedule is asynchronous, so that the server
            never sees a client's own update.
    """

    weighting: Weighting = "uniform"
    needs_summed_lr = True
    needs_one_rate = True

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether the server does not see the update of a single client."""
        return hidden_clients(self, algorithm)

    @override
    def setup(self, federation: Federation) -> None:
        """Start from G_k = 0."""
        self.gradients: ClientVectors
        self.add_client_vectors("gradients", federation.zeros(), federation.weights(self.weighting))

    @override
    def weighted(self, result: ClientResult) -> tuple[Tensor, float]:
        """Renew the client's G_k; return the learning rate, shape ``(1,)``, and 0 if the client made no step."""
        rate = max(result.summed_lr) / max(1, result.num_steps)
        if not rate > 0:
            return result.vector.new_zeros(1), 0.0
        self.gradients[result.client] = result.delta / rate
        return result.vector.new_tensor([rate]), self.weight_of(result)

    @override
    def finish(self, model: Tensor, mean: Tensor, weight: float) -> Tensor:
        """Return the server's parameters, moved along all clients' last updates."""
        self.gradients.commit()
        return model.to(mean.dtype) + mean * self.gradients.mean
