"""Updates clipped around what the server moved by last."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fl_lightning.arguments import check_count, check_positive
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.robust.base import PreAggregation, RobustAggregation
from fl_lightning.parts.robust.updates import Updates


class CenteredClipping(RobustAggregation):
    """``v <- v + mean_i (x_i - v) min(1, radius / |x_i - v|)``, from the last round's v (Karimireddy et al. 2021).

    Args:
        radius: tau: an update pulls no harder than if it were so far away; greater than 0.
        iterations: Steps of a round.
        before: What the updates go through first; see :class:`RobustAggregation`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(self, radius: float, iterations: int = 1, before: PreAggregation | None = None) -> None:
        check_positive("radius", radius)
        check_count("iterations", iterations)
        super().__init__(before)
        self.radius, self.iterations = radius, iterations
        self._center: Tensor | None = None

    def on_fit_start(self, federation: Federation) -> None:
        """Start from 0."""
        super().on_fit_start(federation)
        self._center = None

    def rule(self, updates: Updates) -> Tensor:
        """Return the new center."""
        center = self._center
        for _ in range(self.iterations):
            start = torch.zeros(updates.size, dtype=torch.float64) if center is None else center
            start = start.to(next(updates.blocks()))
            weights = (self.radius / updates.distances_to(start)).clamp(max=1.0) / len(updates)
            center = start * (1 - weights.sum()) + updates.combined(weights)
        assert center is not None
        self._center = center
        return center

    def state_dict(self) -> dict[str, Any]:
        """Return the center."""
        return {"center": self._center}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the center of a checkpoint."""
        self._center = state["center"]
