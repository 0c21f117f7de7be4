"""Updates clipped around the server's last step."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fl_lightning.arguments import check_count, check_positive
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.robust.base import PreAggregation, RobustAggregation
from fl_lightning.parts.robust.updates import Updates


class CenteredClipping(RobustAggregation):
    """``v <- v + mean_i (x_i - v) min(1, radius / |x_i - v|)``, from the last round's v (Karimireddy et al. 2021).

    Args:
        radius: tau, greater than 0: the distance from which an update's influence no longer grows.
        iterations: Steps of a round.
        before: A step before the rule; see :class:`RobustAggregation`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(self, radius: float, iterations: int = 1, before: PreAggregation | None = None) -> None:
        check_positive("radius", radius)
        check_count("iterations", iterations)
        super().__init__(before)
        self.radius, self.iterations = radius, iterations
        self._center: Tensor | None = None  # of the last round's end
        self._moved: Tensor | None = None  # since then

    def on_fit_start(self, federation: Federation) -> None:
        """Start from 0."""
        super().on_fit_start(federation)
        self._center = self._moved = None

    def on_round_end(self) -> None:
        """Keep the center."""
        super().on_round_end()
        self._center = self._center if self._moved is None else self._moved
        self._moved = None

    def on_round_abort(self) -> None:
        """Go back to the center of the last round's end."""
        super().on_round_abort()
        self._moved = None

    def rule(self, updates: Updates) -> Tensor:
        """Return the new center."""
        before, center = self._center if self._moved is None else self._moved, updates.zeros()
        if before is not None:
            center = before.to(center)
        for _ in range(self.iterations):
            updates.weights = (self.radius / updates.distances_to(center)).clamp(max=1.0) / len(updates)
            center = center * (1 - updates.weights.sum()) + updates.combined(updates.weights)
        self._moved = center
        return center

    def state_dict(self) -> dict[str, Any]:
        """Return the center."""
        return {"center": self._center}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the center of a checkpoint."""
        self._center = self._to_device(state["center"])
