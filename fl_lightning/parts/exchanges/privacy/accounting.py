"""Privacy accounting of rounds with the Gaussian mechanism, by Google's dp-accounting."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from importlib.util import find_spec
from typing import Any

from fl_lightning.words import how_to_install

#: Privacy losses are approximated from above on multiples of this: epsilon is at most 0.0001 too large for one round
#: with all clients, and 0.004 after 10,000 rounds at a rate of 0.01. With little noise they are of the size of 1 / z^2,
#: and the grid is so much of that.
_GRID = 1e-3
#: With less noise epsilon is above 5,000; it is called infinite, because the loss distributions overflow.
_LEAST_NOISE = 0.01


@dataclass(frozen=True)
class Mechanism:
    """A sum over sampled clients, each of norm 1 at most, with Gaussian noise.

    Attributes:
        noise: The noise's standard deviation, z.
        rate: Each client's chance to be sampled, independently (Poisson sampling); the share of the clients if
            ``cohort`` is given; 1 for all.
        cohort: Clients that are drawn without replacement; 0 with Poisson sampling.
        population: Clients there are, with ``cohort``.
    """

    noise: float
    rate: float
    cohort: int = 0
    population: int = 0

    @property
    def replaces(self) -> bool:
        """Whether neighbours differ in what one client has; otherwise in whether one client is there at all."""
        return 0 < self.cohort < self.population


def epsilon_of(rounds: Sequence[tuple[Mechanism, int]], delta: float) -> float:
    """Return an upper bound of epsilon of (epsilon, delta)-differential privacy after rounds of these mechanisms.

    Poisson sampling and full participation use privacy loss distributions (Koskela et al. 2020, Doroshenko et al.
    2022); neighbours differ by one client. Sampling without replacement uses Renyi differential privacy (Wang et al.
    2019); neighbours differ in the data of one client, so the sum changes by up to 2.

    With a noise below 0.01 it is infinite.

    Args:
        rounds: Mechanisms, and for how many rounds each ran.
        delta: Probability with which the guarantee may fail, in (0, 1).

    Raises:
        ValueError: If the two kinds of sampling are mixed: their neighbours differ.
    """
    ran = [(mechanism, count) for mechanism, count in rounds if count]
    if not ran:
        return 0.0
    if any(mechanism.noise < _LEAST_NOISE for mechanism, _ in ran):
        return math.inf
    mechanisms = [mechanism for mechanism, _ in ran]
    check_one_kind(mechanisms)
    if mechanisms[0].replaces:
        return _epsilon_replaced(tuple(ran), delta)
    return _epsilon_added(tuple(ran), delta)


def epsilon_of_clients(releases: Mapping[float, Mapping[int, int]], delta: float) -> float:
    """Return an upper bound of every client's epsilon, without amplification by sampling.

    Args:
        releases: How often each client released something, by the noise's standard deviation in units of what one
            neighbour changes.
        delta: Probability with which the guarantee may fail, in (0, 1).
    """
    rounds: list[tuple[Mechanism, int]] = []
    for noise, counts in releases.items():
        # The client that released most spends most.
        rounds.append((Mechanism(noise, 1.0), max(counts.values())))
    return epsilon_of(rounds, delta)


def check_nothing_spent(name: str, spent: float) -> None:
    """Raise ``ValueError`` if anything was spent on the model with which another fit begins at round 0."""
    if spent:
        raise ValueError(
            f"{name} has spent an epsilon of {spent:.3g} on this model, and another fit would count from 0. Go on with "
            "the same Trainer and a larger `max_epochs`, resume by `ckpt_path`, or begin with new weights."
        )


def warn_of_large_delta(name: str, delta: float, number: int, what: str) -> None:
    """Warn of a delta of 1 / n or more, at which publishing everything of one of the n at random is private.

    Args:
        name: The part or callback that has the delta.
        delta: Probability with which the guarantee may fail.
        number: How many clients or samples are protected, n.
        what: What they are, such as ``"clients"``.
    """
    if delta * number >= 1:
        warnings.warn(
            f"{name} has delta={delta:g} for {number} {what}. A delta of 1 / {number} or more protects nobody: it "
            f"allows to publish the data of one of them. Give a delta well below {1 / number:.2g}.",
            stacklevel=2,
        )


def check_one_kind(mechanisms: Sequence[Mechanism]) -> None:
    """Raise ``ValueError`` if two kinds of sampling are mixed; without noise epsilon is infinite for both."""
    noisy = all(mechanism.noise for mechanism in mechanisms)
    if noisy and len({mechanism.replaces for mechanism in mechanisms}) > 1:
        raise ValueError(
            "Poisson sampling, or all clients, and a fixed number of clients have no common epsilon: their neighbours "
            "differ. Keep one kind of sampling for the whole run."
        )


def noise_for(epsilon: float, delta: float, mechanism: Mechanism, rounds: int) -> float:
    """Return the smallest noise, to 0.1 per cent, with which so many rounds spend at most ``epsilon``."""
    low = 0.0
    high = 1.0
    while _spent(mechanism, high, rounds, delta) > epsilon:
        low = high
        high = 2 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        if _spent(mechanism, middle, rounds, delta) <= epsilon:
            high = middle
        else:
            low = middle
    return high


def _spent(mechanism: Mechanism, noise: float, rounds: int, delta: float) -> float:
    # Less noise than this is of no use to anybody, and its privacy losses fill the memory.
    if noise < 0.05:
        return math.inf
    return epsilon_of([(replace(mechanism, noise=noise), rounds)], delta)


def check_installed() -> None:
    """Raise ``ModuleNotFoundError`` if dp-accounting is not there."""
    if find_spec("dp_accounting") is None:
        raise ModuleNotFoundError(f"Epsilon needs dp-accounting. Install it by `{how_to_install('privacy')}`.")


@lru_cache(maxsize=64)
def _loss_distribution(noise: float, rate: float, grid: float) -> Any:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    return from_gaussian_mechanism(noise, value_discretization_interval=grid, sampling_prob=rate)


# Logs and checkpoints ask for the same figure.
@lru_cache(maxsize=8)
def _epsilon_added(rounds: tuple[tuple[Mechanism, int], ...], delta: float) -> float:
    largest_loss = max(mechanism.noise**-2 for mechanism, _ in rounds)
    grid = _GRID * max(1.0, largest_loss)
    # Made one after the other: a run may have as many as rounds, each of thousands of numbers.
    parts = (
        _loss_distribution(mechanism.noise, mechanism.rate, grid).self_compose(count) for mechanism, count in rounds
    )
    total = reduce(lambda one, other: one.compose(other), parts)
    return float(total.get_epsilon_for_delta(delta))


@lru_cache(maxsize=8)
def _epsilon_replaced(rounds: tuple[tuple[Mechanism, int], ...], delta: float) -> float:
    from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    for mechanism, count in rounds:
        # The noise in units of the sum's largest change.
        gaussian = GaussianDpEvent(mechanism.noise / 2)
        event = SampledWithoutReplacementDpEvent(mechanism.population, mechanism.cohort, gaussian)
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))
