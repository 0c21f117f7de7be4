"""Updates weighted by the losses of their clients (q-FedAvg)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fl_lightning.arguments import check_instance, check_not_negative, check_positive
from fl_lightning.parts.aggregation import Aggregation
from fl_lightning.parts.federation import ClientResult, Federation, LocalClient, Task, accumulator
from fl_lightning.parts.objectives import LocalObjective

_LEAST_LOSS = 1e-10  # as in the authors' code: a power of 0 may be infinite


class MeasuredLoss(LocalObjective):
    """The plain objective, whose value at the received model is computed before training: one more pass over the data.

    Attributes:
        losses: F_k at the received model, by the slot of the round's clients that this process trains.
    """

    needs_summed_lr = True

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}

    def on_round_start(self, round_index: int) -> None:
        """Forget the losses of the last round."""
        self.losses = {}

    def correction(self, client: LocalClient) -> None:
        """Compute the client's loss; add nothing to it."""
        self.losses[client.task.slot] = client.loss()

    def loss_of(self, task: Task) -> float:
        """Return the loss that was computed."""
        return self.losses[task.slot]


class FairMean(Aggregation):
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
            or models circulate: they have no loss of one client.
    """

    reduces_over_ranks = True

    def __init__(self, q: float, measured: MeasuredLoss, lipschitz: float | None = None) -> None:
        check_not_negative("q", q, "0 is FedAvg with uniform weights.")
        check_instance("measured", measured, MeasuredLoss)
        if lipschitz is not None:
            check_positive("lipschitz", lipschitz, "None takes 1 over the learning rate.")
        self.q, self.measured, self.lipschitz = q, measured, lipschitz
        self._sum: Tensor | None = None  # (num_parameters + 1,): F^q d, then the denominator

    def check_beside(self, parts: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if results do not come with the loss of their client."""
        if parts["objective"] is not self.measured:
            raise ValueError(
                f"FairMean needs its `measured` as the algorithm's objective, which computes the losses, got "
                f"{parts['objective']!r}. Give the same MeasuredLoss() as both, or use QFedAvg."
            )
        if parts["schedule"].keeps_models:
            raise ValueError(
                f"FairMean cannot merge circulating models, as {type(parts['schedule']).__name__} has them: many "
                "clients trained each, so that it has no loss of one client. Use another schedule or aggregation."
            )

    def on_fit_start(self, federation: Federation) -> None:
        """Start with nothing added."""
        self._sum = None

    def weight_of(self, result: ClientResult) -> float:
        """Return F_k^q; a client that made no step, or all with a learning rate of 0, does not count."""
        if not result.num_steps or not max(result.summed_lr, default=0.0):
            return 0.0
        return self._power(result, self.q)

    def update(self, result: ClientResult) -> None:
        """Add a weighted update."""
        weight = self.weight_of(result)
        if not weight:
            return
        steepness = self.lipschitz or result.num_steps / max(result.summed_lr)
        n, total = len(result.parameters), self._opened(result.parameters)
        slope = self.q * self._power(result, self.q - 1)
        way = steepness * (result.start[:n].to(total.dtype) - result.parameters.to(total.dtype))
        total[:n].add_(way, alpha=weight)
        total[n] += slope * way.square().sum() + steepness * weight

    def _power(self, result: ClientResult, exponent: float) -> float:
        loss = result.loss
        assert loss is not None  # the objective is `measured`
        if loss < 0:
            raise ValueError(
                f"Client {result.task.client} has the loss {loss:g}. The weights of q-FedAvg are powers of the losses, "
                "which must not be negative. Add a constant to the loss in `training_step`."
            )
        try:
            return float(max(loss, _LEAST_LOSS) ** exponent)
        except OverflowError:
            raise ValueError(
                f"`q={self.q}` is too large for client {result.task.client}'s loss of {loss:g}: its weight, a power of "
                "the loss, is no number any more. Give a smaller `q`, or scale the loss in `training_step`."
            ) from None

    def merge(self, model: Tensor) -> Tensor | None:
        """Return the server's parameters moved by the weighted updates, float64 of shape ``(num_parameters,)``."""
        total, self._sum = self.federation.sum_over_ranks(self._opened(model)), None
        return model.to(total.dtype) - total[:-1] / total[-1] if total[-1] else None

    def on_round_abort(self) -> None:
        """Forget everything that was added."""
        super().on_round_abort()
        self._sum = None

    def _opened(self, like: Tensor) -> Tensor:
        if self._sum is None:
            self._sum = torch.zeros(len(like) + 1, dtype=accumulator(like), device=like.device)
        return self._sum
