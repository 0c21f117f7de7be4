"""Who trains: client samplers."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np


class ClientSampler(ABC):
    """Draws the clients of a round."""

    @abstractmethod
    def cohort_size(self, num_clients: int) -> int:
        """Return how many clients train in a round, out of ``num_clients``.

        Raises:
            ValueError: If the federation is too small for the sampler's setting.
        """

    @abstractmethod
    def draw(self, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return the distinct clients of one round, in random order: integers in ``[0, num_clients)``."""


class UniformSampler(ClientSampler):
    """Draws ``m`` distinct clients uniformly, without replacement.

    Args:
        clients_per_round: A float in (0, 1] is the fraction C of the clients, ``m = max(floor(C K), 1)`` as in RADFed's
            Algorithm 1; an int is ``m`` itself.

    Raises:
        ValueError: If the fraction is outside (0, 1] or the count below 1.
    """

    def __init__(self, clients_per_round: int | float) -> None:
        is_count = isinstance(clients_per_round, int) and not isinstance(clients_per_round, bool)
        is_fraction = isinstance(clients_per_round, float) and 0.0 < clients_per_round <= 1.0
        if not (is_fraction or (is_count and clients_per_round >= 1)):
            raise ValueError(
                "`clients_per_round` must be a float in (0, 1], the fraction of the clients, or an int of at least 1, "
                f"their number; got {clients_per_round!r}. For all clients give 1.0."
            )
        self.clients_per_round = clients_per_round

    def cohort_size(self, num_clients: int) -> int:
        """Return ``m``.

        Raises:
            ValueError: If more clients are asked for than there are.
        """
        if isinstance(self.clients_per_round, float):
            # the small number keeps 0.3 * 10 = 2.9999999999999996 from becoming 2
            return max(int(self.clients_per_round * num_clients + 1e-9), 1)
        if self.clients_per_round > num_clients:
            raise ValueError(
                f"`clients_per_round` is {self.clients_per_round}, but only {num_clients} clients train. Give at most "
                f"{num_clients}, or a fraction such as 0.1."
            )
        return self.clients_per_round

    def draw(self, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return ``m`` distinct clients in random order."""
        return rng.choice(num_clients, size=self.cohort_size(num_clients), replace=False)
