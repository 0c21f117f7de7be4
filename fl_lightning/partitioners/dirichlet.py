"""Label skew by a Dirichlet prior over the classes of each client."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_lightning.partitioners.base import Partitioner
from fl_lightning.partitioners.partition import members
from fl_lightning.settings import Count, Natural, NotNegative, Positive

_MAX_DRAWS = 100


@dataclass(eq=False)
class DirichletPartitioner(Partitioner):
    """The partition of FedDyn's experiments: fixed client sizes, classes drawn from a prior for each client.

    Each client draws a prior over the classes from Dir(alpha). Then, until all clients are full, a client that is not
    full is picked uniformly, a class is drawn from its prior, renormalised over the classes that have samples left
    (uniformly where the prior has no mass on any of them), and the client takes the next sample of that class.

    Args:
        num_clients: Number of clients, K.
        alpha: Concentration of the prior: near 0 gives one class to a client, large values give each the same mix.
        size_sigma: 0 gives every client floor(N/K) samples, so that N modulo K samples belong to no client.
            Otherwise sizes are drawn from a lognormal distribution with this standard deviation of the logarithm,
            scaled to N and truncated; the first client gets the remainder.
        max_classes_per_partition: Priors and samples are drawn again until no client has samples of more classes.
        seed: Seed of sizes, priors and draws.

    Raises:
        ValueError: If an argument is out of range; on call, if 100 draws of the sizes leave a client without samples,
            or 100 draws of the samples give a client more than ``max_classes_per_partition`` classes.

    Example:
        >>> import numpy as np
        >>> labels = np.arange(60) % 3
        >>> DirichletPartitioner(4, alpha=0.5, seed=0)(labels).sizes.tolist()
        [15, 15, 15, 15]
    """

    num_clients: Count
    alpha: Positive
    size_sigma: NotNegative = 0.0
    max_classes_per_partition: Count | None = None
    seed: Natural = 0

    needs_classes = True

    def assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client; see :meth:`Partitioner.assign`."""
        rng = self.generator()
        sizes = self._sizes(len(classes), rng)
        samples_by_class = members(classes, classes.max() + 1)
        concentrations = np.full(len(samples_by_class), self.alpha)
        for _ in range(_MAX_DRAWS):
            priors = rng.dirichlet(concentrations, size=self.num_clients)
            clients = _draw(sizes, priors, samples_by_class, rng)
            if self.max_classes_per_partition is None:
                return clients
            most = max(len(np.unique(classes[samples])) for samples in clients)
            if most <= self.max_classes_per_partition:
                return clients
        raise ValueError(
            f"In {_MAX_DRAWS} draws some client always had more than `max_classes_per_partition` classes "
            f"({self.max_classes_per_partition}). Raise it, or lower `alpha` (now {self.alpha})."
        )

    def _sizes(self, num_samples: int, rng: np.random.Generator) -> np.ndarray:
        mean = num_samples / self.num_clients
        if self.size_sigma == 0:
            return np.full(self.num_clients, int(mean), dtype=np.int64)
        for _ in range(_MAX_DRAWS):
            draws = rng.lognormal(math.log(mean), self.size_sigma, self.num_clients)
            sizes = sizes_from_draws(draws, num_samples)
            if sizes.min() > 0:
                return sizes
        raise ValueError(
            f"In {_MAX_DRAWS} draws of the sizes of {self.num_clients:,} clients some client had none of the "
            f"{num_samples:,} samples. Lower `size_sigma` (now {self.size_sigma}) or `num_clients`."
        )


def sizes_from_draws(draws: np.ndarray, num_samples: int) -> np.ndarray:
    """Scale positive draws to sum to ``num_samples`` and truncate them; the first client gets the remainder.

    Args:
        draws: Positive numbers, shape (num_clients,).
        num_samples: Sum of the sizes, N.

    Returns:
        Sizes, int64, shape (num_clients,).
    """
    scaled: np.ndarray = draws / draws.sum() * num_samples
    sizes: np.ndarray = scaled.astype(np.int64)
    sizes[0] += num_samples - sizes.sum()
    return sizes


def _draw(
    sizes: np.ndarray, priors: np.ndarray, samples_by_class: Sequence[np.ndarray], rng: np.random.Generator
) -> list[np.ndarray]:
    """Fill the clients one sample at a time; see :class:`DirichletPartitioner`.

    Picking among the clients that are not full, and the classes that are not empty, has the law of picking among all
    and rejecting. A class is found in the cumulated prior, which changes only when a class runs out.
    """
    # Plain lists, and uniform numbers drawn at once: numpy's calls for single numbers would take most of the time.
    remaining: list[list[int]] = [samples[::-1].tolist() for samples in samples_by_class]
    clients: list[list[int]] = [[] for _ in sizes]
    capacity = sizes.tolist()
    open_clients = list(range(len(capacity)))
    cumulated = _cumulate(priors, remaining)
    total = sum(capacity)
    client_draws = rng.random(total).tolist()
    class_draws = rng.random(total).tolist()
    for pick_client, pick_class in zip(client_draws, class_draws, strict=True):
        position = int(pick_client * len(open_clients))
        client = open_clients[position]
        label = bisect(cumulated[client], pick_class)
        clients[client].append(remaining[label].pop())
        if not remaining[label]:
            cumulated = _cumulate(priors, remaining)
        if len(clients[client]) == capacity[client]:
            open_clients[position] = open_clients[-1]
            open_clients.pop()
    return [np.array(samples, dtype=np.int64) for samples in clients]


def _cumulate(priors: np.ndarray, remaining: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return each client's cumulated prior over the classes with samples left, one entry per class."""
    left = np.array([len(samples) > 0 for samples in remaining])
    if not left.any():
        return []
    weights = priors * left
    weights[weights.sum(axis=1) == 0] = left
    cumulated = np.cumsum(weights, axis=1)
    cumulated /= cumulated[:, -1:]
    # No uniform number in [0, 1) may reach a class beyond the last one with samples, whatever the rounding.
    last = int(np.flatnonzero(left)[-1])
    cumulated[:, last:] = 1.0
    rows: list[list[float]] = cumulated.tolist()
    return rows
