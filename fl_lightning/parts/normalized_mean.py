"""Updates divided by how far their local steps reach (FedNova)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fl_lightning.arguments import check_choice, check_fraction, check_not_negative, plain
from fl_lightning.parts.aggregation import Aggregation, Weighting
from fl_lightning.parts.federation import ClientResult, Federation, accumulator
from fl_lightning.parts.fednova_norm import fednova_norm
from fl_lightning.parts.objectives import LocalObjective


class NormalizedMean(Aggregation):
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

    reduces_over_ranks = True

    def __init__(self, momentum: float = 0.0, mu: float = 0.0, weighting: Weighting = "samples") -> None:
        check_fraction("momentum", momentum, "It is that of the clients' SGD.")
        check_not_negative("mu", mu, "It is the weight of the clients' proximal term.")
        check_choice("weighting", weighting, ("samples", "uniform"))
        self.momentum, self.mu = momentum, mu
        self.weighting: Weighting = weighting
        self._sum: Tensor | None = None  # (num_parameters + 2,): p Delta / |a|, then p |a|, then p

    @property
    def needs_summed_lr(self) -> bool:  # type: ignore[override]
        """Whether the clients' learning rates are needed: beside a proximal term they decide on the reach."""
        return self.mu > 0

    def check_beside(self, parts: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if the reach of the clients' steps would be another one."""
        objective = parts["objective"]
        mu = _mu_of(objective)
        if parts["schedule"].keeps_models and (self.momentum or self.mu or mu):
            raise ValueError(
                f"{self!r} cannot merge circulating models: each client starts without momentum and with its own "
                "proximal term, so the steps of a cycle do not add up. Use NormalizedMean() with plain SGD and without "
                "a proximal term."
            )
        if not isinstance(mu, (int, float)):  # a schedule
            raise ValueError(
                f"{self!r} needs one number as the weight of the proximal term in all rounds, got {objective!r}. Give "
                "both the same number as `mu`."
            )
        if self.mu and mu != self.mu:
            raise ValueError(
                f"{self!r} needs an objective with the same proximal term, got {objective!r}. Use Proximal({self.mu}), "
                f"or FedNova(mu={self.mu}), which has both."
            )
        if mu != self.mu:
            own = NormalizedMean(self.momentum, mu, self.weighting)
            raise ValueError(
                f"{self!r} has no proximal term, but {objective!r} has. Use {own!r}, or FedNova(mu={mu}), which has "
                "both."
            )

    def on_fit_start(self, federation: Federation) -> None:
        """Start with nothing added."""
        self._sum = None

    def weight_of(self, result: ClientResult) -> float:
        """Return p_k; a client that made no step does not count."""
        return super().weight_of(result) if result.num_steps else 0.0

    def update(self, result: ClientResult) -> None:
        """Add a normalised update."""
        weight = self.weight_of(result)
        if not weight:
            return
        reach = self.reach(result.num_steps, max(result.summed_lr, default=0.0) / result.num_steps)
        n, total = len(result.parameters), self._opened(result.parameters)
        kind = total.dtype
        total[:n].add_(result.parameters.to(kind) - result.start[:n].to(kind), alpha=weight / reach)
        total[n:] += torch.tensor([weight * reach, weight], dtype=kind, device=total.device)

    def reach(self, steps: int, lr: float = 0.0) -> float:
        """Return |a| of so many steps with the learning rate ``lr``, which matters beside a proximal term only."""
        return fednova_norm(steps, self.momentum, lr * self.mu)

    def merge(self, model: Tensor) -> Tensor | None:
        """Return the server's parameters moved by the normalised updates, float64 of shape ``(num_parameters,)``."""
        total, self._sum = self.federation.sum_over_ranks(self._opened(model)), None
        reach, weight = float(total[-2]), float(total[-1])
        if not weight:
            return None
        return model.to(total.dtype) + total[:-2] * (reach / weight / weight)

    def on_round_abort(self) -> None:
        """Forget everything that was added."""
        super().on_round_abort()
        self._sum = None

    def _opened(self, like: Tensor) -> Tensor:
        if self._sum is None:
            self._sum = torch.zeros(len(like) + 2, dtype=accumulator(like), device=like.device)
        return self._sum


def _mu_of(objective: LocalObjective) -> Any:
    """Return the weight of the proximal term of an objective, or of the one objective that it holds."""
    held = [part for part in objective.held_parts if isinstance(part, LocalObjective)]
    if hasattr(objective, "mu") or objective.correcting or len(held) != 1:
        return plain(getattr(objective, "mu", None) or 0.0)
    return _mu_of(held[0])
