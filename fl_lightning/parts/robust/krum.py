"""The update that has the closest neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.arguments import check_count
from fl_lightning.parts.robust.base import PreAggregation, RobustAggregation, check_enough
from fl_lightning.parts.robust.updates import Updates


class Krum(RobustAggregation):
    """The update closest to its ``m - f - 2`` nearest others (Blanchard et al. 2017); multi-Krum averages several.

    The score of an update is the sum of its squared distances to these others. m is the number of updates.

    Args:
        num_byzantine: f, how many of the updates may be arbitrary; ``m >= 2 f + 3`` is needed.
        num_selected: How many updates of the smallest scores are averaged: 1 is Krum, more is multi-Krum; at most
            ``m - f``.
        before: A step before the rule; see :class:`RobustAggregation`.

    Raises:
        ValueError: If an argument is out of its range; in a round, if there are too few updates.
    """

    def __init__(self, num_byzantine: int, num_selected: int = 1, before: PreAggregation | None = None) -> None:
        check_count("num_byzantine", num_byzantine, 0, "It is how many of a round's updates may be arbitrary.")
        check_count("num_selected", num_selected, 1, "1 is Krum, more is multi-Krum.")
        super().__init__(before)
        self.num_byzantine, self.num_selected = int(num_byzantine), int(num_selected)

    def rule(self, updates: Updates) -> Tensor:
        """Return the mean of the chosen updates."""
        check_enough(updates, max(2 * self.num_byzantine + 3, self.num_selected + self.num_byzantine), self)
        # the first of a row's sorted distances is its own, 0
        nearest = updates.distances().sort(1).values[:, 1 : len(updates) - self.num_byzantine - 1]
        chosen = nearest.sum(1).sort(stable=True).indices[: self.num_selected]
        weights = torch.zeros(len(updates), dtype=nearest.dtype, device=nearest.device)
        updates.weights = weights.index_fill(0, chosen, 1 / self.num_selected)
        return updates.combined(updates.weights)
