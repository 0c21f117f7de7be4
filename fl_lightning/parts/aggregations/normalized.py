"""Means of updates that are divided by the reach of local steps (FedNova)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.base import Weighting
from fl_lightning.parts.aggregations.means import MeanAggregation
from fl_lightning.parts.messages import ClientResult
from fl_lightning.parts.objectives.control_variates import effective_steps
from fl_lightning.settings import Fraction, NotNegative
from fl_lightning.vectors import sum_dtype

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


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
    needs_one_rate = True

    @property
    @override
    def counts_on_momentum(self) -> float:  # type: ignore[override]
        """The momentum that lengthens the reach of steps."""
        return self.momentum

    @property
    @override
    def needs_summed_lr(self) -> bool:  # type: ignore[override]
        """Whether the clients' learning rates are needed: with a proximal term they decide on the reach."""
        return self.mu > 0

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether the reach of the clients' steps would be another one."""
        mu = algorithm.objective.proximal_weight
        if algorithm.schedule.circulates and (self.momentum or self.mu or mu):
            yield f"{self!r} cannot merge circulating models with `momentum` or `mu`: steps of a cycle do not add up."
        if mu != self.mu:
            yield f"`mu` of {self!r} must be the same number as that of the objective, got {algorithm.objective!r}."
        if self.momentum and algorithm.optimizer_state == "kept":
            yield f'{self!r} counts on a momentum that begins with 0 in each round. Give `optimizer_state="fresh"`.'

    @override
    def weight_of(self, result: ClientResult) -> float:
        """Return p_k; 0 for a client that made no step."""
        return super().weight_of(result) if result.num_steps else 0.0

    def reach(self, steps: int, lr: float = 0.0) -> float:
        """Return |a| of so many steps with the learning rate ``lr``, which matters with a proximal term only."""
        return effective_steps(steps, self.momentum, lr * self.mu)

    @override
    def weighted(self, result: ClientResult) -> tuple[Tensor, float]:
        """Return ``Delta_k / |a_k|`` followed by ``|a_k|``, and p_k."""
        mean_lr = max(result.summed_lr, default=0.0) / max(result.num_steps, 1)
        reach = self.reach(result.num_steps, mean_lr)
        kind = sum_dtype(result.vector)
        moved = result.parameters.to(kind) - result.received_parameters.to(kind)
        # A client without a step has a reach of 0, and no weight.
        normalized = moved / (reach or 1.0)
        return torch.cat([normalized, moved.new_tensor([reach])]), self.weight_of(result)

    @override
    def finish(self, model: Tensor, mean: Tensor, weight: float) -> Tensor:
        """Return the server's parameters moved by the normalised updates, float64 of shape ``(num_parameters,)``."""
        mean_update = mean[:-1]
        effective_reach = mean[-1]
        return model.to(mean.dtype) + effective_reach * mean_update
