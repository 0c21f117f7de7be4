"""The point whose distances to all updates are smallest."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.arguments import check_count, check_not_negative, check_positive
from fl_lightning.parts.robust.base import PreAggregation, RobustAggregation
from fl_lightning.parts.robust.updates import Updates


class GeometricMedian(RobustAggregation):
    """The point with the smallest sum of distances to the updates (Pillutla et al. 2022, RFA).

    It is found by the smoothed Weiszfeld algorithm, which starts at 0 and repeatedly takes the mean with the weights
    ``1 / max(smoothing, distance)``. Fewer than half of the updates may be arbitrary.

    Args:
        smoothing: nu, greater than 0, in the units of the updates: below this distance an update's weight no longer
            grows.
        max_iterations: Largest number of steps; each reads all updates once.
        tolerance: The algorithm stops when a step is shorter than this share of the way so far.
        before: A step before the rule; see :class:`RobustAggregation`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        smoothing: float = 1e-6,
        max_iterations: int = 100,
        tolerance: float = 1e-6,
        before: PreAggregation | None = None,
    ) -> None:
        check_positive("smoothing", smoothing)
        check_count("max_iterations", max_iterations)
        check_not_negative("tolerance", tolerance, "0 makes all steps.")
        super().__init__(before)
        self.smoothing, self.max_iterations, self.tolerance = smoothing, max_iterations, tolerance

    def rule(self, updates: Updates) -> Tensor:
        """Return the geometric median."""
        center = updates.zeros()
        for _ in range(self.max_iterations):
            weights = 1 / updates.distances_to(center).clamp(min=self.smoothing)
            updates.weights = weights / weights.sum()
            moved = updates.combined(updates.weights)
            step, center = torch.linalg.vector_norm(moved - center), moved
            if step <= self.tolerance * torch.linalg.vector_norm(center):
                break
        return center
