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

    runs_at = "client"
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
        size = self.cohort_size(federation.num_clients)
        if size > self.num_candidates:
            raise ValueError(f"`num_candidates` must be at least the {size} clients of a round, got {self}.")

    @override
    def clients_to_score(self, rng: np.random.Generator, available: np.ndarray) -> Iterable[int]:
        """Draw the candidates."""
        number = min(self.num_candidates, len(available))
        shares = None
        if self.candidates == "samples" and number:
            sizes = self.federation.sizes[available]
            shares = sizes / sizes.sum()
        self._candidates = rng.choice(available, number, replace=False, p=shares)
        if number <= self.cohort_size(self.federation.num_clients):
            # All candidates train, whatever their losses are.
            return ()
        return self._candidates

    @override
    def score(self, client: LocalClient) -> float:
        """Return the client's loss."""
        return client.loss()

    @override
    def take_scores(self, scores: Mapping[int, float]) -> None:
        """Keep the candidates with the largest losses, in the order in which they were drawn."""
        losses = np.array([scores[client] for client in self._candidates])
        size = self.cohort_size(self.federation.num_clients)
        descending = np.argsort(-losses, kind="stable")
        self._candidates = self._candidates[np.sort(descending[:size])]

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

    runs_at = "client"
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
        # Only differences count; the largest valuation is taken off, so that no power overflows.
        weights = np.exp(self.alpha2 * (valuations - valuations.max(initial=-np.inf)))
        ascending = np.argsort(valuations, kind="stable")
        number_of_smallest = int(self.alpha1 * len(clients))
        weights[ascending[:number_of_smallest]] = 0.0
        probabilities: np.ndarray = weights / weights.sum()
        return probabilities

    @override
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return m distinct clients, those by valuation first."""
        size = min(self.cohort_size(num_clients), len(available))
        shares = self.probabilities(available)
        number = min(size - round(self.alpha3 * size), int(np.count_nonzero(shares)))
        chosen = available[:0]
        if number:
            chosen = rng.choice(available, number, replace=False, p=shares)
        others = np.setdiff1d(available, chosen)
        explored = rng.choice(others, size - number, replace=False)
        return np.concatenate([chosen, explored])


@dataclass(eq=False)
class ByDuration(Chooser):
    """Knows how long each client takes."""

    clock: VirtualClock

    def durations(self, federation: Federation) -> np.ndarray:
        """Return each client's time for its local training, in virtual time, shape ``(K,)``."""
        clock = self.clock
        clock.setup(federation)
        ticks = [clock.duration(client, 0) for client in range(federation.num_clients)]
        return np.array([clock.time(duration) for duration in ticks])


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

    runs_at = "client"
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
        #: Utility of each client, shape (K,); NaN before its first.
        self.utilities: np.ndarray
        self.add_state("utilities", np.full(federation.num_clients, np.nan))
        #: The round of each utility, from 1, shape (K,).
        self.since: np.ndarray
        self.add_state("since", np.ones(federation.num_clients))
        #: Sum of the new utilities of each round, of the last two windows.
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
        window = self.window
        rounds = self.round + 1
        gained = 0.0
        for client, utility in scores.items():
            if np.isfinite(utility):
                self.utilities[client] = utility
                self.since[client] = rounds
                gained += utility
        self.gained = [*self.gained, gained][-2 * window :]
        if rounds % window == 0 and len(self.gained) == 2 * window:
            before = sum(self.gained[:window])
            now = sum(self.gained[window:])
            if now < before:
                self.longest += self._pace

    def worth(self, clients: np.ndarray) -> np.ndarray:
        """Return what clients with a utility are worth in this round."""
        # What is known for long is less certain, and worth another look.
        uncertainty = np.sqrt(0.1 * np.log(self.round + 1) / self.since[clients])
        speed = np.minimum(1.0, self.longest / self._durations[clients])
        worth: np.ndarray = (self.utilities[clients] + uncertainty) * speed**self.penalty
        return worth

    @override
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return m distinct clients, those that trained before first."""
        size = min(self.cohort_size(num_clients), len(available))
        is_new = np.isnan(self.utilities[available])
        known = available[~is_new]
        new = available[is_new]

        # Some are new ones, the faster the likelier.
        share = max(0.2, 0.9 * 0.98**self.round) if self.exploration is None else self.at("exploration")
        num_new = max(size - len(known), min(round(share * size), len(new)))
        num_known = size - num_new
        explored: np.ndarray = new[:0]
        if num_new:
            speeds = 1 / self._durations[new]
            explored = rng.choice(new, num_new, replace=False, p=speeds / speeds.sum())
        if not num_known:
            return explored

        # The others are drawn by worth, without those that are worth much less than the last one that is needed.
        worth = self.worth(known)
        last_needed = np.sort(worth)[-num_known]
        worth = np.where(worth >= self.cutoff * last_needed, worth, 0.0)
        exploited = rng.choice(known, num_known, replace=False, p=worth / worth.sum())
        return np.concatenate([exploited, explored])


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

    runs_at = "client"
    scored_at: ClassVar[ScoredAt] = None
    num_tiers: Count = 5
    interval: Count = 20
    credits: Count | Sequence[Count] | None = None

    @override
    def setup(self, federation: Federation) -> None:
        """Make the tiers; all are as likely."""
        number = min(self.num_tiers, federation.num_clients)
        fastest_first = np.argsort(self.durations(federation), kind="stable")
        self.tiers = np.array_split(fastest_first, number)
        credits = np.inf if self.credits is None else self.credits
        #: How often each tier can still be drawn.
        self.left: np.ndarray
        self.add_state("left", np.zeros(number) + credits)
        #: Chances of the tiers, but for a factor.
        self.weights: np.ndarray
        self.add_state("weights", np.ones(number))
        #: Mean loss of each tier at the last evaluation.
        self.losses: np.ndarray
        self.add_state("losses", np.full(number, np.inf))
        #: The tier that was drawn last.
        self.tier: int
        self.add_state("tier", 0)

    @override
    def clients_to_score(self, rng: np.random.Generator, available: np.ndarray) -> Iterable[int]:
        """Return all clients in every ``interval``-th round."""
        is_due = self.round % self.interval == 0
        return range(self.federation.num_clients) if is_due else ()

    @override
    def score(self, client: LocalClient) -> float:
        """Return the client's loss."""
        return client.loss()

    @override
    def take_scores(self, scores: Mapping[int, float]) -> None:
        """Compare the tiers' losses with the last ones, and rank the tiers that have credits."""
        sizes = self.federation.sizes
        means: list[float] = []
        for tier in self.tiers:
            of_clients = [scores[client] for client in tier]
            means.append(float(np.average(of_clients, weights=sizes[tier])))
        losses = np.array(means)
        if losses[self.tier] >= self.losses[self.tier]:
            ranked = [tier for tier in np.argsort(losses, kind="stable") if self.left[tier] > 0]
            self.weights = np.zeros(len(losses))
            self.weights[ranked] = np.arange(1.0, len(ranked) + 1)
        self.losses = losses

    @override
    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray) -> np.ndarray:
        """Return m distinct clients of one tier."""
        members = [np.intersect1d(tier, available) for tier in self.tiers]
        is_present = np.array([len(tier) > 0 for tier in members])
        if not is_present.any():
            return available
        chances = np.where(is_present & (self.left > 0), self.weights, 0.0)
        if not chances.any():
            chances = is_present.astype(float)
        self.tier = int(rng.choice(len(members), p=chances / chances.sum()))
        self.left[self.tier] -= 1
        drawn = members[self.tier]
        size = min(self.cohort_size(num_clients), len(drawn))
        return rng.choice(drawn, size, replace=False)
