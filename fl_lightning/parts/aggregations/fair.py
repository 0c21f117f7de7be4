"""Updates weighted by losses (q-FedAvg)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.means import MeanAggregation
from fl_lightning.parts.messages import ClientResult
from fl_lightning.parts.objectives.measured import MeasuredLoss
from fl_lightning.settings import NotNegative, Positive
from fl_lightning.vectors import sum_dtype

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


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
            or models circulate or are of groups: they have no loss of one client; in a round, if a loss is negative.
    """

    q: NotNegative
    measured: MeasuredLoss
    lipschitz: Positive | None = None

    @property
    @override
    def needs_one_rate(self) -> bool:  # type: ignore[override]
        """Whether 1 over the learning rate stands for ``lipschitz``."""
        return self.lipschitz is None

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether results do not come with the loss of their client."""
        if algorithm.objective is not self.measured or algorithm.schedule.hides_clients:
            yield f"{self!r} needs `measured` as the algorithm's objective, and results of single clients."

    @override
    def weight_of(self, result: ClientResult) -> float:
        """Return F_k^q; 0 for a client that made no step, or all with a learning rate of 0."""
        has_stepped = result.num_steps and max(result.summed_lr)
        return self._power(result, self.q) if has_stepped else 0.0

    @override
    def weighted(self, result: ClientResult) -> tuple[Tensor, float]:
        """Return ``F^q d`` followed by the denominator's addend, and whether the client counts."""
        weight = self.weight_of(result)
        kind = sum_dtype(result.vector)
        steepness = self.lipschitz or 0.0
        slope = 0.0
        if weight:
            if self.lipschitz is None:
                steepness = result.num_steps / max(result.summed_lr)
            slope = self.q * self._power(result, self.q - 1)
        way = steepness * (result.received_parameters.to(kind) - result.parameters.to(kind))
        addend = slope * way.square().sum() + steepness * weight
        return torch.cat([way * weight, addend.view(1)]), float(weight > 0)

    def _power(self, result: ClientResult, exponent: float) -> float:
        loss = result.loss
        # `check_with` has made sure that the objective is `measured`, which sends a loss.
        assert loss is not None
        if loss < 0:
            raise ValueError(f"`q` needs losses of at least 0, got {loss:g} from client {result.client}.")
        # As in the authors' code: a power of 0 may be infinite.
        return float(max(loss, 1e-10) ** exponent)

    @override
    def finish(self, model: Tensor, mean: Tensor, weight: float) -> Tensor:
        """Return the server's parameters moved by the weighted updates, float64 of shape ``(num_parameters,)``."""
        return model.to(mean.dtype) - mean[:-1] / mean[-1]
