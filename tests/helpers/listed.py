"""A sampler whose clients are given."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from fl_lightning.parts import ClientSampler


class Listed(ClientSampler):
    """Draws the listed clients of each round, in their order."""

    def __init__(self, *rounds: list[int]) -> None:
        self.rounds = rounds

    @override
    def cohort_size(self, num_clients: int) -> int:
        return max(map(len, self.rounds))

    @override
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        return np.array(self.rounds[self.round])

    @property
    @override
    def draws_in_random_order(self) -> bool:
        return True
