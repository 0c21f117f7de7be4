"""Clients drawn from each of several groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from fl_lightning.parts.groups import Groups, members_of
from fl_lightning.parts.samplers.base import ClientSampler
from fl_lightning.settings import Count, Share
from fl_lightning.vectors import share_of


@dataclass(eq=False)
class GroupSampler(ClientSampler):
    """Draws so many distinct clients of each group uniformly, without replacement.

    Args:
        groups: The clients of each group; or the number of groups, which then are clients in a row.
        clients_per_group: A float in (0, 1] is a fraction of the group's clients, rounded down and at least one; an int
            is their number, or all of a smaller group.

    Raises:
        ValueError: If an argument is out of its range; in a round, if a client is not in one group.

    Example:
        >>> sampler = GroupSampler(groups=2, clients_per_group=1)
        >>> algorithm = HierFAVG(groups=2, inner_rounds=2, sampler=sampler)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    always_draws = True
    groups: Groups
    clients_per_group: Count | Share

    @override
    def cohort_size(self, num_clients: int) -> int:
        return sum(self._number_of(len(members)) for members in members_of(self.groups, num_clients))

    def _number_of(self, size: int) -> int:
        """Return how many clients of a group of this size are drawn."""
        if isinstance(self.clients_per_group, float):
            return max(1, int(share_of(self.clients_per_group, size)))
        return min(self.clients_per_group, size)

    @override
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return the clients of all groups; those of a group come together."""
        drawn: list[np.ndarray] = []
        for members in members_of(self.groups, num_clients):
            reachable = np.intersect1d(members, available)
            number = min(self._number_of(len(members)), len(reachable))
            drawn.append(rng.choice(reachable, size=number, replace=False))
        return np.concatenate(drawn)
