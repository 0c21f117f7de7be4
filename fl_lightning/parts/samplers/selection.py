"""Who trains, by losses and by speed: power-of-choice, AFL, Oort, TiFL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
from typing_extensions import override

from fl_lightning.parts.clock import VirtualClock
from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.samplers.base import ScoredAt
from fl_lightning.parts.samplers.uniform import Rounding, UniformSampler
from fl_lightning.settings import Count, Fraction, NotNegative, Positive, Share

Exploration = Annotated[float, "[0, 1]"] | Callable[[int], float]


@dataclass(eq=False)
class Chooser(UniformSampler):
    """Chooses ``m`` distinct clients by what it knows of them."""

    rounding: Rounding = field(default="floor", kw_only=True)


@dataclass(eq=False)
class PowerOfChoice(Chooser):
    """Of d drawn clients, the m with the largest losses at the server's model train (Cho et al. 2020; eq. (71)).

    Each candidate gets the model and sends its loss. With ``num_candidates`` = m nobody is asked.

    Args:
        clients_per_round: m, as for :class:`UniformSampler`.
        num_candidates: d, at least m.
        candidates: ``"samples"`` draws candidates one after the other in proportion to their sizes, ``"uniform"`` as
            :class:`UniformSampler` does.
        rounding: As for :class:`UniformSampler`.

    Raises:
        ValueError: If an argument is out of its range; when the fit begins, if ``num_candidates`` is less than m.

    Example:
        >>> algorithm = FedAvg(sampler=PowerOfChoice(2, 4))
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    scored_at: ClassVar[ScoredAt] = None
    num_candidates: Count
    candidates: Literal["samples", "uniform"] = "samples"

    @property
    @override
    def draws_in_random_order(self) -> bool:
        """Whether no client is more likely to come first."""
        return self.candidates == "uniform"

    @override
    def setup(self, federation: Federation) -> None:
        """Check the number of candidates."""
        if (size := self.cohort_size(federation.num_clients)) > self.num_candidates:
            raise ValueError(f"`num_candidates` must be at least the {size} clients of a round, got {self}.")

    @override
    def clients_to_score(self, rng: np.random.Generator, available: np.ndarray) -> Iterable[int]:
        """Draw the candidates."""
        sizes = self.federation.sizes[available]
        number = min(self.num_candidates, len(available))
        shares = sizes / sizes.sum() if self.candidates == "samples" and number else None
        self._candidates = rng.choice(available, number, replace=False, p=shares)
        return self._candidates if number > self.cohort_size(self.federation.num_clients) else ()

    @override
    def score(self, client: LocalClient) -> float:
        """Return the client's loss."""
        return client.loss()

    @override
    def take_scores(self, scores: Mapping[int, float]) -> None:
        """Keep the candidates with the largest losses, in the order in which they were drawn."""
        losses = np.array([scores[client] for client in self._candidates])
        worst = np.argsort(-losses, kind="stable")[: self.cohort_size(self.federation.num_clients)]
        self._candidates = self._candidates[np.sort(worst)]

    @override
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return the candidates that are left."""
        return self._candidates


@dataclass(eq=False)
class ActiveSampler(Chooser):
    """Draws clients with large valuations more often (AFL, Goetz et al. 2019; eq. (72), (73)).

    A client's valuation ``v = sqrt(n_k) F_k(w)`` is that at the first model, and then at the last one that it received:
    a number up, and one more pass over its data.

    Args:
        clients_per_round: m, as for :class:`UniformSampler`.
        alpha1: Share of the clients, those with the smallest valuations, that can only be drawn uniformly.
        alpha2: Others are drawn with probabilities in proportion to ``exp(alpha2 v)``.
        alpha3: Share of m that is drawn uniformly from the remaining clients.
        rounding: As for :class:`UniformSampler`.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> algorithm = FedAvg(sampler=ActiveSampler(2))
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    scored_at: ClassVar[ScoredAt] = "received"
    alpha1: Fraction = 0.75
    alpha2: NotNegative = 0.01
    alpha3: Annotated[float, "[0, 1]"] = 0.1

    @override
    def setup(self, federation: Federation) -> None:
        #: v_k of each client, shape (K,); NaN before its first.
        self.valuations: np.ndarray
        self.add_state("valuations", np.full(federation.num_clients, np.nan))

    @override
    def clients_to_score(self, rng: np.random.Generator, available: np.ndarray) -> Iterable[int]:
        """Return the clients without a valuation."""
        return np.flatnonzero(np.isnan(self.valuations))

    @override
    def score(self, client: LocalClient) -> float:
        """Return the client's valuation."""
        return float(client.task.num_samples**0.5 * client.loss())

    @override
    def take_scores(self, scores: Mapping[int, float]) -> None:
        """Take new valuations; one that is not finite is 0."""
        for client, valuation in scores.items():
            self.valuations[client] = valuation if np.isfinite(valuation) else 0.0

    def probabilities(self, clients: np.ndarray) -> np.ndarray:
        """Return the probability of each of ``clients`` in a single draw by valuation."""
        valuations = self.valuations[clients]
        weights = np.exp(self.alpha2 * (valuations - valuations.max(initial=-np.inf)))
        weights[np.argsort(valuations, kind="stable")[: int(self.alpha1 * len(clients))]] = 0.0
        probabilities: np.ndarray = weights / weights.sum()
        return probabilities

    @override
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return m distinct clients, those by valuation first."""
        size = min(self.cohort_size(num_clients), len(available))
        shares = self.probabilities(available)
        number = min(size - round(self.alpha3 * size), int(np.count_nonzero(shares)))
        chosen = rng.choice(available, number, replace=False, p=shares) if number else available[:0]
        others = np.setdiff1d(available, chosen)
        return np.concatenate([chosen, rng.choice(others, size - number, replace=False)])


@dataclass(eq=False)
class ByDuration(Chooser):
    """Knows how long each client takes."""

    clock: VirtualClock

    def durations(self, federation: Federation) -> np.ndarray:
        """Return each client's time for its local training, in virtual time, shape ``(K,)``."""
        self.clock.setup(federation)
        return np.array([self.clock.time(self.clock.duration(k, 0)) for k in range(federation.num_clients)])


@dataclass(eq=False)
class Oort(ByDuration):
    """Prefers clients with large losses that are fast enough, and explores others (Lai et al. 2021; eq. (74)-(76)).

    A client's utility is ``n_k sqrt(mean of squared losses)`` at the model that it received last, each the loss of one
    of its batches, since ``training_step`` returns no others: a number up, and one more pass over its data. Clients
    that take longer than ``T`` are worth less. Without the authors' blacklist and clipping of utilities.

    Args:
        clients_per_round: m, as for :class:`UniformSampler`.
        clock: How long each client takes.
        exploration: Share of m that is drawn, in proportion to their speeds, from clients that never trained; a
            function of the round makes a schedule, and ``None`` is 0.9 at first, 2 % less in each round, at least 0.2.
            Others take the place of those that are missing.
        penalty: Exponent of ``T / duration`` for clients that take longer than T.
        pace: T at first, in virtual time, and what it grows by; ``None`` takes the clients' median duration.
        window: T grows in every ``window`` rounds if their utilities have sum less than in as many rounds before.
        cutoff: Only clients with this share of the utility of the last one that would be taken can be drawn.
        rounding: As for :class:`UniformSampler`.

    Raises:
        TypeError: If ``clock`` is none.
        ValueError: If an argument is out of its range; when the fit begins, if the clock is of other clients.

    Example:
        >>> algorithm = FedAvg(sampler=Oort(2, VirtualClock([100, 90, 80, 30, 20, 10])))
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    scored_at: ClassVar[ScoredAt] = "received"
    exploration: Exploration | None = None
    penalty: NotNegative = 2.0
    pace: Positive | None = None
    window: Count = 20
    cutoff: Share = 0.95

    @override
    def setup(self, federation: Federation) -> None:
        self._durations = self.durations(federation)
        self._pace = float(np.median(self._durations)) if self.pace is None else self.pace
        self.longest: float
        self.add_state("longest", self._pace)
        #: Utility of each client, shape (K,), NaN before its first; and the round of it, from 1.
        self.utilities: np.ndarray
        self.add_state("utilities", np.full(federation.num_clients, np.nan))
        self.since: np.ndarray
        self.add_state("since", np.ones(federation.num_clients))
        self.gained: list[float]
        self.add_state("gained", [])

    @override
    def score(self, client: LocalClient) -> float:
        """Return the client's statistical utility."""
        squares = sum(size * loss**2 for loss, size in client.losses())
        return float((client.task.num_samples * squares) ** 0.5)

    @override
    def take_scores(self, scores: Mapping[int, float]) -> None:
        """Take new utilities; let T grow if they have become less."""
        found = {client: utility for client, utility in scores.items() if np.isfinite(utility)}
        for client, utility in found.items():
            self.utilities[client], self.since[client] = utility, self.round + 1
        self.gained = [*self.gained, sum(found.values())][-2 * self.window :]
        if (self.round + 1) % self.window == 0 and len(self.gained) == 2 * self.window:
            self.longest += self._pace * (sum(self.gained[: self.window]) > sum(self.gained[self.window :]))

    def worth(self, clients: np.ndarray) -> np.ndarray:
        """Return what clients with a utility are worth in this round."""
        utilities = self.utilities[clients] + np.sqrt(0.1 * np.log(self.round + 1) / self.since[clients])
        worth: np.ndarray = utilities * np.minimum(1.0, self.longest / self._durations[clients]) ** self.penalty
        return worth

    @override
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return m distinct clients, those that trained before first."""
        size = min(self.cohort_size(num_clients), len(available))
        new = np.isnan(self.utilities[available])
        known, new = available[~new], available[new]
        share = max(0.2, 0.9 * 0.98**self.round) if self.exploration is None else self.at("exploration")
        number = max(size - len(known), min(round(share * size), len(new)))
        speeds = 1 / self._durations[new]
        explored = rng.choice(new, number, replace=False, p=speeds / speeds.sum()) if number else new[:0]
        if size == number:
            return explored
        worth = self.worth(known)
        worth *= worth >= self.cutoff * np.sort(worth)[number - size]
        return np.concatenate([rng.choice(known, size - number, replace=False, p=worth / worth.sum()), explored])


@dataclass(eq=False)
class TierSampler(ByDuration):
    """Draws a tier of clients that are equally fast, and from it the clients of a round (TiFL, Chai et al. 2020).

    Every ``interval`` rounds all clients get the server's model and send their losses there. If the mean loss of the
    tier that was drawn last has not fallen since, tiers with larger losses are drawn more often (eq. (77)).

    Args:
        clients_per_round: m, as for :class:`UniformSampler`; of a tier with fewer clients all train.
        clock: How long each client takes.
        num_tiers: Number of tiers, of about as many clients each, the fastest first.
        interval: Rounds from one evaluation to the next.
        credits: How often a tier can be drawn, one number for all or one for each; ``None`` sets no limit. When no tier
            has credits left, all are drawn alike.
        rounding: As for :class:`UniformSampler`.

    Raises:
        TypeError: If ``clock`` is none.
        ValueError: If an argument is out of its range; when the fit begins, if the clock is of other clients, or there
            are not as many ``credits`` as tiers.

    Example:
        >>> algorithm = FedAvg(sampler=TierSampler(2, VirtualClock([100, 90, 80, 30, 20, 10]), num_tiers=3))
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    scored_at: ClassVar[ScoredAt] = None
    num_tiers: Count = 5
    interval: Count = 20
    credits: Count | Sequence[Count] | None = None

    @override
    def setup(self, federation: Federation) -> None:
        """Make the tiers; all are as likely."""
        number = min(self.num_tiers, federation.num_clients)
        self.tiers = np.array_split(np.argsort(self.durations(federation), kind="stable"), number)
        self.left: np.ndarray
        self.add_state("left", np.zeros(number) + (np.inf if self.credits is None else self.credits))
        self.weights: np.ndarray
        self.add_state("weights", np.ones(number))
        self.losses: np.ndarray
        self.add_state("losses", np.full(number, np.inf))
        self.tier: int
        self.add_state("tier", 0)

    @override
    def clients_to_score(self, rng: np.random.Generator, available: np.ndarray) -> Iterable[int]:
        """Return all clients in every ``interval``-th round."""
        return () if self.round % self.interval else range(self.federation.num_clients)

    @override
    def score(self, client: LocalClient) -> float:
        """Return the client's loss."""
        return client.loss()

    @override
    def take_scores(self, scores: Mapping[int, float]) -> None:
        """Compare the tiers' losses with the last ones, and rank the tiers that have credits."""
        sizes = self.federation.sizes
        losses = np.array([np.average([scores[k] for k in tier], weights=sizes[tier]) for tier in self.tiers])
        if losses[self.tier] >= self.losses[self.tier]:
            ranked = [tier for tier in np.argsort(losses, kind="stable") if self.left[tier] > 0]
            self.weights = np.zeros(len(losses))
            self.weights[ranked] = np.arange(1.0, len(ranked) + 1)
        self.losses = losses

    @override
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return m distinct clients of one tier."""
        members = [np.intersect1d(tier, available) for tier in self.tiers]
        present = np.array([float(len(tier) > 0) for tier in members])
        if not present.any():
            return available
        chances = present * self.weights * (self.left > 0)
        chances = chances if chances.any() else present
        self.tier = int(rng.choice(len(members), p=chances / chances.sum()))
        self.left[self.tier] -= 1
        drawn = members[self.tier]
        return rng.choice(drawn, min(self.cohort_size(num_clients), len(drawn)), replace=False)
