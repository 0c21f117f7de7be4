"""Client-level differential privacy: clipped updates, and noise on their sum."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.exchanges.base import Exchange
from fl_lightning.parts.exchanges.privacy.accounting import (
    Mechanism,
    check_installed,
    check_nothing_spent,
    check_one_kind,
    epsilon_of,
    noise_for,
    warn_of_large_delta,
)
from fl_lightning.parts.exchanges.privacy.disclosure import HINT, MORE, parts_that_send_more
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult
from fl_lightning.parts.samplers.base import ClientSampler
from fl_lightning.seeding import Stream, torch_generator
from fl_lightning.settings import Count, NotNegative, Positive, Probability, check_fields

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm

Infinite = Literal[math.inf]  # type: ignore[valid-type]
#: eta_C of Andrew et al. 2021.
_CLIP_LR = 0.2
#: Noise of the count of unclipped updates, as a share of the cohort, as they recommend.
_COUNT_NOISE = 1 / 20


class _Deviations(NamedTuple):
    """Standard deviations of a round's noise.

    Attributes:
        accounted: What epsilon is computed from.
        of_sum: The noise of the sum of updates, in units of the bound.
        of_count: The noise of the count of unclipped updates.
    """

    accounted: float
    of_sum: float
    of_count: float


@dataclass(eq=False)
class DifferentialPrivacy(Exchange):
    """DP-FedAvg (McMahan et al. 2018): updates are clipped, noise is added to their sum, once a round, by the server.

    The server moves by ``(sum_k Delta_k min(1, clip / |Delta_k|) + N(0, (z clip)^2)) / m``, m the *expected* number of
    clients, q K. The guarantee protects a whole client against everyone who sees all models that the server sends. The
    server itself is trusted. A round without clients adds noise too. ``docs/privacy.md`` says what is not protected.

    The noise comes from the run's seed, so that a run can be repeated. Anyone who knows the seed can remove the noise.

    Args:
        clip: Largest L2 norm of an update; with ``adaptive_quantile`` the first bound. It may be infinite only without
            noise.
        noise_multiplier: z, at least 0.
        epsilon: Instead of ``noise_multiplier``: the run takes the least noise with which ``Trainer(max_epochs=...)``
            rounds spend at most this epsilon.
        delta: Probability with which the guarantee may fail, in (0, 1); well below 1 over the number of clients.
        adaptive_quantile: The bound moves to this quantile of the updates' norms (Andrew et al. 2021): after each round
            by ``exp(-0.2 (b - quantile))``, b the share of unclipped updates, with noise of a 20th of m, which z pays
            for. ``None`` keeps the bound.
        noise_cohort: Scales the noise by ``m / noise_cohort``, as if this many clients had joined a round, to see what
            a larger federation would reach. The logged epsilon is the true one of this run.

    Raises:
        TypeError: If neither or both of ``noise_multiplier`` and ``epsilon`` are given.
        ModuleNotFoundError: If dp-accounting is not installed.
        ValueError: If an argument is out of its range, or the epsilon would be wrong with the sampler, schedule,
            objective, aggregation, participation or later exchanges; in a round or a resumed run, if the sampling has
            changed such that epsilon is not known or ``epsilon`` would be overspent.
    """

    clip: Positive | Infinite
    _: KW_ONLY
    noise_multiplier: NotNegative | None = None
    epsilon: Positive | None = None
    delta: Probability
    adaptive_quantile: Probability | None = None
    noise_cohort: Count | None = None
    records = (Mechanism,)

    @override
    def __post_init__(self) -> None:
        if (self.noise_multiplier is None) == (self.epsilon is None):
            raise TypeError(
                f"Give `noise_multiplier` or `epsilon`, got {self.noise_multiplier!r} and {self.epsilon!r}."
            )
        if self.clip == math.inf and self.noise_multiplier != 0:
            raise ValueError("`clip` must be finite, got inf. It may be infinite only with `noise_multiplier=0`.")
        check_fields(self)
        check_installed()

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield with which parts epsilon would not be known."""
        self._algorithm = algorithm
        for reason in _unanalysed(algorithm):
            yield f"DifferentialPrivacy would print a wrong epsilon: {reason}"

    @override
    def check_another_fit(self) -> None:
        """Raise ``ValueError`` if this part has trained the model before: it would count from 0."""
        check_nothing_spent("DifferentialPrivacy", self.spent)

    @override
    def setup(self, federation: Federation) -> None:
        federation.check_sizes_stay(f"The accounting of {type(self).__name__}", "Leave `changes` out.")
        warn_of_large_delta("DifferentialPrivacy", self.delta, federation.num_clients, "clients")
        self.bound: float
        self.add_state("bound", self.clip)
        self.noise: float
        self.add_state("noise", self.noise_multiplier)
        #: For how many rounds, and of which kind, noise was chosen.
        self.planned: tuple[int, Mechanism] | None
        self.add_state("planned", None)
        #: Mechanisms, and for how many rounds each.
        self.ran: list[tuple[Mechanism, int]]
        self.add_state("ran", [])
        self.asked: list[float | None]
        self.add_state("asked", [self.epsilon, self.delta])

    @override
    def on_round_start(self, round_index: int) -> None:
        """Find the noise that ``epsilon`` asks for, if it is not known."""
        self._unclipped = 0
        self._cohort = _cohort_of(self._algorithm.sampler, self.federation.num_clients)
        if self.epsilon is not None:
            self._plan(round_index, self.epsilon)
        # An error is raised here, before any work is done.
        ran = [mechanism for mechanism, _ in self.ran]
        check_one_kind([*ran, self._mechanism])

    def _plan(self, round_index: int, epsilon: float) -> None:
        if self.planned is None:
            rounds = self.federation.max_rounds
            if rounds is None:
                raise ValueError("`epsilon` is spent over all rounds: give `max_epochs`, or `noise_multiplier`.")
            scale = 1.0 if self.noise_cohort is None else self.noise_cohort / self._expected
            self.noise = noise_for(epsilon, self.delta, self._cohort, rounds) * scale
            self.planned = (rounds, self._mechanism)
        rounds, mechanism = self.planned
        if self._mechanism != mechanism or round_index >= rounds:
            raise ValueError(
                f"`epsilon={epsilon}` is spent by {rounds} rounds like {mechanism}, got round {round_index + 1}, like "
                f"{self._mechanism}. Keep the sampler, the clients and `max_epochs`, or give `noise_multiplier`."
            )

    @property
    def _mechanism(self) -> Mechanism:
        """What the round spends."""
        return replace(self._cohort, noise=self._deviations().accounted)

    @property
    def _expected(self) -> float:
        """The expected number of clients in the round, m."""
        return self._cohort.rate * self.federation.num_clients

    # ---- a round ----

    @override
    def upload(self, result: ClientResult) -> ClientResult:
        """Return the result with the clipped update."""
        clipped = self.clipped(result, self.bound)
        if clipped is result:
            self._unclipped += 1
        return clipped

    @override
    def on_sum(self, total: Tensor, count: float) -> tuple[Tensor, float]:
        """Return the noised sum, float64 of shape ``(num_parameters,)``, and the expected number of clients."""
        expected = self._expected
        # The updates were clipped to the bound that the round began with.
        bound = self.bound
        deviations = self._deviations()
        ran = dict(self.ran)
        ran[self._mechanism] = ran.get(self._mechanism, 0) + 1
        self.ran = list(ran.items())
        # The same on all processes.
        generator = torch_generator(self.federation.seed, Stream.PRIVACY, self.round)
        if self.adaptive_quantile is not None:
            drawn = float(torch.randn((), generator=generator, dtype=torch.float64))
            self.bound = self._adapted(count, deviations.of_count * drawn, expected, self.adaptive_quantile)
        if not deviations.of_sum:
            return total, expected
        noise = torch.randn(total.shape, generator=generator, dtype=torch.float64).to(total)
        return total + deviations.of_sum * bound * noise, expected

    def _deviations(self) -> _Deviations:
        """Return the noise of the round."""
        noise = self.noise
        expected = self._expected
        cohort = expected if self.noise_cohort is None else float(self.noise_cohort)
        scale = expected / cohort
        if self.adaptive_quantile is None or not noise:
            return _Deviations(noise * scale, noise * scale, 0.0)
        of_sum = _beside_count(noise, _COUNT_NOISE * cohort) * scale
        return _Deviations(noise * scale, of_sum, _COUNT_NOISE * expected)

    def _adapted(self, count: float, noise: float, expected: float, quantile: float) -> float:
        """Return the bound moved by the noised share of unclipped updates."""
        device = self.federation.model.device
        unclipped = float(self.federation.sum_over_ranks(torch.tensor(self._unclipped, device=device)))
        # Each client counts 1/2 or -1/2, so that one changes the sum by 1/2 alone.
        share = (unclipped - count / 2 + noise) / expected + 0.5
        return float(self.bound * math.exp(-_CLIP_LR * (share - quantile)))

    # ---- what is spent ----

    @property
    def clip_norm(self) -> float:
        """The bound of the next round's updates."""
        return float(self.bound)

    @property
    def spent(self) -> float:
        """Epsilon of all rounds so far, with :attr:`delta`."""
        return epsilon_of(self.ran, self.delta)

    @override
    def values(self) -> dict[str, float]:
        """Return epsilon so far and its delta, and the bound if it adapts."""
        values = {"fed/epsilon": self.spent, "fed/delta": self.delta}
        if self.adaptive_quantile is not None:
            values["fed/clip_norm"] = self.bound
        return values

    @override
    def load_state_dict(self, state: Any) -> None:
        """Go on from what a checkpoint's run has spent; a fixed noise and bound are those given now.

        Raises:
            ValueError: If the noise follows from ``epsilon``, and the checkpoint's run was given another one.
        """
        if self.epsilon is not None and state["ran"] and state["asked"] != self.asked:
            raise ValueError(f"`epsilon` and `delta` must be the checkpoint's, {state['asked']}, got {self.asked}.")
        now: dict[str, object] = {"asked": self.asked}
        if self.adaptive_quantile is None:
            now["bound"] = self.clip
        if self.epsilon is None:
            now |= {"noise": self.noise_multiplier, "planned": None}
        super().load_state_dict({**state, **now})


def _beside_count(noise: float, count_noise: float) -> float:
    """Return the noise of updates such that they and the count together spend what ``noise`` alone would."""
    room = noise**-2 - (2 * count_noise) ** -2
    if room <= 0:
        raise ValueError(
            f"`adaptive_quantile` needs more than {noise / (2 * _COUNT_NOISE):g} clients in a round, or a smaller "
            f"`noise_multiplier` than {noise:g}: the noisy count of unclipped updates spends more by itself."
        )
    return float(room**-0.5)


def _cohort_of(sampler: ClientSampler, num_clients: int) -> Mechanism:
    """Return how a sampler draws clients, as the accounting sees it, without noise."""
    chance = sampler.chance(num_clients)
    if sampler.inclusion == "independent" or chance == 1.0:
        return Mechanism(0.0, chance)
    return Mechanism(0.0, chance, sampler.cohort_size(num_clients), num_clients)


def _unanalysed(algorithm: Algorithm) -> Iterator[str]:
    """Yield why no published analysis gives epsilon for an algorithm."""
    schedule = algorithm.schedule
    sampler = algorithm.sampler
    participation = algorithm.participation
    if schedule.hides_clients or schedule.asynchronous:
        yield f"with {schedule!r} models travel without noise, or a client's speed decides how often it counts."
    if schedule.shows_client_models:
        yield f'{schedule!r} shows models of clients without noise. FedAvg has `evaluate="server"`.'
    if sampler.inclusion is None:
        yield f"no analysis covers the clients that {sampler!r} draws. Use BernoulliSampler or UniformSampler."
    for part in parts_that_send_more(algorithm):
        yield f"with {part!r} {MORE} may reach the server without noise. {HINT}"
    if participation.stragglers:
        yield "`stragglers` are a share of the round's clients, so that one client's presence changes what others do."
    if sampler.inclusion == "together" and (participation.available is not None or participation.dropout):
        yield "availability and drop-out change with which chance a client is drawn. Use BernoulliSampler."
