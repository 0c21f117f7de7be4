"""Finds the staleness that is comparable with a synchronous round."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import numpy as np

from fl_lightning.settings import Count, Natural, Positive, Probability, check

Durations = Literal["exponential"] | Sequence[float] | Callable[[np.random.Generator], float]

#: Largest staleness of FedAsync in Xue et al. 2021, by data set; they cannot be derived from the text.
PAPER_STALENESS = {"MNIST": 18, "CIFAR-10": 19, "Covertype": 18, "Shakespeare": 28, "eICU": 31}


def calibrate_staleness(
    clients_per_round: int,
    durations: Durations = "exponential",
    quantile: float = 0.97,
    arrivals: int = 100_000,
    seed: int = 0,
) -> int:
    """Return the largest staleness to admit so that as many clients are at work as in a synchronous round.

    ``clients_per_round`` clients are always at work, and the server moves at each result, so that the mean staleness is
    ``clients_per_round - 1`` (Little's law). The result is a quantile of the staleness in such a simulation. With
    exponential durations and m = 6, 8 and 9 the 0.965 quantiles are near 18, 25 and 28. (For FedAsync's sampled
    ``history`` D the mean is (D - 1) / 2, so that D = 2 m - 1 gives the same mean.)

    Args:
        clients_per_round: m, the clients of a synchronous round.
        durations: Time of a task: ``"exponential"``, a sequence from which it is drawn, or a function of a generator.
        quantile: Which quantile of the staleness to return, in (0, 1).
        arrivals: Results to simulate; the first tenth is left out.
        seed: Seed of the simulation.

    Raises:
        ValueError: If an argument is out of its range, or a duration is not greater than 0.
    """
    check("`clients_per_round`", clients_per_round, Count)
    check("`arrivals`", arrivals, Annotated[int, "[10, inf)"])
    check("`seed`", seed, Natural)
    check("`quantile`", quantile, Probability)
    draw = _drawer(durations)
    rng = np.random.default_rng(seed)
    under_way = [(draw(rng), client, 0) for client in range(clients_per_round)]
    heapq.heapify(under_way)
    staleness = np.empty(arrivals)
    for version in range(arrivals):
        now, client, received = under_way[0]
        staleness[version] = version - received
        heapq.heapreplace(under_way, (now + draw(rng), client, version + 1))
    return int(np.quantile(staleness[arrivals // 10 :], quantile, method="inverted_cdf"))


def _drawer(durations: Durations) -> Callable[[np.random.Generator], float]:
    if callable(durations):
        check("`durations(generator)`", durations(np.random.default_rng(0)), Positive)
        return durations
    if isinstance(durations, str):
        check("`durations`", durations, Literal["exponential"])
        return lambda rng: float(rng.exponential())
    values = check("`durations`", durations, Sequence[Positive])
    return lambda rng: float(values[rng.integers(len(values))])
