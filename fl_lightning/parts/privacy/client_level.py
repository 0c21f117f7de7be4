"""Client-level differential privacy: clipped updates, and noise on their sum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fl_lightning.arguments import (
    check_count,
    check_interval,
    check_not_negative,
    check_positive,
    got,
    is_finite,
    is_number,
    plain,
)
from fl_lightning.parts.exchange.base import Exchange
from fl_lightning.parts.federation import ClientResult, Federation
from fl_lightning.parts.privacy.accounting import (
    Mechanism,
    check_installed,
    check_one_kind,
    epsilon_of,
    noise_for,
    refuse_another_fit,
)
from fl_lightning.parts.privacy.analysed import cohort_of, refuse_unanalysed
from fl_lightning.seeding import Stream, torch_generator

_CLIP_LR = 0.2  # eta_C of Andrew et al. 2021
_COUNT_NOISE = 1 / 20  # of the cohort, for the count of unclipped updates, as they recommend


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

    sums_updates = True

    def __init__(
        self,
        clip: float,
        *,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        delta: float,
        adaptive_quantile: float | None = None,
        noise_cohort: int | None = None,
    ) -> None:
        if (noise_multiplier is None) == (epsilon is None):
            raise TypeError(
                "Give either `noise_multiplier` or `epsilon`, from which the noise follows; got "
                f"{noise_multiplier!r} and {epsilon!r}."
            )
        _check_clip(clip, noise_multiplier)
        if noise_multiplier is not None:
            check_not_negative("noise_multiplier", noise_multiplier)
        if epsilon is not None:
            check_positive("epsilon", epsilon)
        check_interval("delta", delta, "It should be well below 1 over the number of clients.", within="(0, 1)")
        if adaptive_quantile is not None:
            check_interval("adaptive_quantile", adaptive_quantile, "0.5 is usual.", within="(0, 1)")
        if noise_cohort is not None:
            check_count("noise_cohort", noise_cohort)
        check_installed()
        # plain numbers, so that checkpoints stay readable with weights_only=True
        self.clip, self.delta = float(plain(clip)), float(plain(delta))
        self.noise_multiplier = None if noise_multiplier is None else float(plain(noise_multiplier))
        self.epsilon = None if epsilon is None else float(plain(epsilon))
        self.adaptive_quantile = None if adaptive_quantile is None else float(plain(adaptive_quantile))
        self.noise_cohort = None if noise_cohort is None else int(noise_cohort)
        self._sampler: Any = None
        self._cohort = Mechanism(0.0, 1.0)  # how the round's clients are drawn
        self._forget()

    def _forget(self) -> None:
        self._bound = self.clip
        self._noise = self.noise_multiplier
        self._planned: tuple[int, Mechanism] | None = None  # for how many rounds, and of which kind, noise was chosen
        self._ran: dict[Mechanism, int] = {}
        self._unclipped = self._round = 0
        self._released: tuple[Mechanism, float] | None = None  # what the round spends, and the bound after it

    def check_beside(self, parts: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` for parts with which epsilon would not be known."""
        refuse_unanalysed(parts, "DifferentialPrivacy")
        self._sampler = parts["sampler"]

    def check_another_fit(self) -> None:
        """Raise ``ValueError`` if this part has trained the model before: it would count from 0."""
        refuse_another_fit("DifferentialPrivacy", self.spent)

    def on_fit_start(self, federation: Federation) -> None:
        """Start with nothing spent."""
        self._forget()

    def on_round_start(self, round_index: int) -> None:
        """Find the noise that ``epsilon`` asks for, if it is not known."""
        self._round, self._unclipped = round_index, 0
        self._cohort = cohort_of(self._sampler, self.federation.num_clients)
        if self.epsilon is not None:
            self._plan(round_index, self.epsilon)
        check_one_kind([*self._ran, self._mechanism])  # it fails before any work is done

    def _plan(self, round_index: int, epsilon: float) -> None:
        if self._planned is None:
            rounds = self.federation.max_rounds
            if rounds is None:
                raise ValueError(
                    "`epsilon` is spent over all rounds, so their number must be known. Give "
                    "`Trainer(max_epochs=...)`, or `noise_multiplier`."
                )
            self._noise = self._least_noise(rounds, epsilon)
            self._planned = rounds, self._mechanism
        rounds, mechanism = self._planned
        if self._mechanism != mechanism:
            raise ValueError(
                f"The noise was chosen so that {rounds} rounds like {mechanism} spend `epsilon={epsilon}`, but this "
                f"round is {self._mechanism}. Keep the sampler, `clients_per_round`, the number of clients and "
                "`noise_cohort` for the whole run, or give `noise_multiplier`, with which they may change."
            )
        if round_index >= rounds:
            raise ValueError(
                f"The noise was chosen so that {rounds} rounds spend `epsilon={epsilon}`. Another round would spend "
                f"more. End the fit after {rounds} rounds, or start anew with a larger `max_epochs`."
            )

    def _least_noise(self, rounds: int, epsilon: float) -> float:
        scale = 1.0 if self.noise_cohort is None else self.noise_cohort / self._expected
        return noise_for(epsilon, self.delta, self._cohort, rounds) * scale

    @property
    def _mechanism(self) -> Mechanism:
        """What the round spends."""
        return replace(self._cohort, noise=self._deviations()[0])

    @property
    def _expected(self) -> float:
        """The expected number of clients in the round, m."""
        return self._cohort.rate * self.federation.num_clients

    # ---- a round ----

    def upload(self, result: ClientResult) -> ClientResult:
        """Return the result with the clipped update."""
        update = self.sent_update(result)
        length = float(torch.linalg.vector_norm(update.double()))
        if length <= self._bound:
            self._unclipped += 1
            return result
        return self.with_sent_update(result, update * (self._bound / length))

    def summed(self, total: Tensor, count: float) -> tuple[Tensor, float]:
        """Return the noised sum, float64 of shape ``(num_parameters,)``, and the expected number of clients."""
        expected, generator, bound = self._expected, self._generator(), self._bound
        _, deviation, count_deviation = self._deviations()
        renewed = bound
        if self.adaptive_quantile is not None:
            drawn = float(torch.randn((), generator=generator, dtype=torch.float64))
            renewed = self._adapted(count, count_deviation * drawn, expected)
        self._released = self._mechanism, renewed
        if not deviation:
            return total, expected
        noise = torch.randn(total.shape, generator=generator, dtype=torch.float64).to(total)
        return total + deviation * bound * noise, expected

    def _deviations(self) -> tuple[float, float, float]:
        """Return the noise that is accounted for, that of the sum in units of the bound, and that of the count."""
        noise, expected = self._noise, self._expected
        assert noise is not None
        cohort = expected if self.noise_cohort is None else float(self.noise_cohort)
        scale = expected / cohort
        if self.adaptive_quantile is None or not noise:
            return noise * scale, noise * scale, 0.0
        return noise * scale, _beside_count(noise, _COUNT_NOISE * cohort) * scale, _COUNT_NOISE * expected

    @property
    def _device(self) -> torch.device:
        return self.federation.model.device

    def _generator(self) -> torch.Generator:
        """Return a generator that is the same for any executor and number of processes."""
        return torch_generator(self.federation.seed, Stream.PRIVACY, self._round)

    def _adapted(self, count: float, noise: float, expected: float) -> float:
        """Return the bound moved by the noised share of unclipped updates."""
        assert self.adaptive_quantile is not None
        unclipped = float(self.federation.sum_over_ranks(torch.tensor(self._unclipped, device=self._device)))
        # each client counts 1/2 or -1/2, so that one changes the sum by 1/2 alone
        share = (unclipped - count / 2 + noise) / expected + 0.5
        return self._bound * math.exp(-_CLIP_LR * (share - self.adaptive_quantile))

    def on_round_end(self) -> None:
        """Count what the round released."""
        super().on_round_end()
        if self._released is not None:
            mechanism, self._bound = self._released
            self._ran[mechanism] = self._ran.get(mechanism, 0) + 1
        self._released = None

    def on_round_abort(self) -> None:
        """Forget the round."""
        super().on_round_abort()
        self._unclipped, self._released = 0, None

    # ---- what is spent ----

    @property
    def clip_norm(self) -> float:
        """The bound of the next round's updates."""
        return self._bound

    @property
    def spent(self) -> float:
        """Epsilon of all rounds so far, with :attr:`delta`."""
        return epsilon_of(list(self._ran.items()), self.delta)

    def values(self) -> dict[str, float]:
        """Return epsilon so far and its delta, and the bound if it adapts."""
        bound = {} if self.adaptive_quantile is None else {"fed/clip_norm": self._bound}
        return {"fed/epsilon": self.spent, "fed/delta": self.delta, **bound}

    def state_dict(self) -> dict[str, Any]:
        """Return the rounds so far with what they spent."""
        ran = [[*vars(mechanism).values(), count] for mechanism, count in self._ran.items()]
        planned = None if self._planned is None else [self._planned[0], *vars(self._planned[1]).values()]
        plan = {"noise": self._noise, "planned": planned, "asked": [self.epsilon, self.delta]}
        return {"ran": ran, "bound": self._bound, **plan, "epsilon": self.spent, "delta": self.delta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what a checkpoint's run has spent; a fixed noise and bound are those given now.

        Raises:
            ValueError: If the noise follows from ``epsilon``, and the checkpoint's run was given another one.
        """
        self._ran = {Mechanism(*mechanism): count for *mechanism, count in state["ran"]}
        if self.adaptive_quantile is not None:
            self._bound = state["bound"]
        if self.epsilon is None or not self._ran:
            return
        epsilon, delta = state["asked"]
        if (epsilon, delta) != (self.epsilon, self.delta):
            raise ValueError(
                f"`epsilon={self.epsilon}` and `delta={self.delta}` cannot be kept: the checkpoint's run had "
                f"`epsilon={epsilon}` and `delta={delta}`, and has spent {self.spent:.3g} by now. Resume with the same "
                "ones, give `noise_multiplier`, which may change, or start anew."
            )
        rounds, *mechanism = state["planned"]
        self._noise, self._planned = state["noise"], (rounds, Mechanism(*mechanism))


def _beside_count(noise: float, count_noise: float) -> float:
    """Return the noise of updates such that they and the count together spend what ``noise`` alone would."""
    room = noise**-2 - (2 * count_noise) ** -2
    if room <= 0:
        raise ValueError(
            f"`adaptive_quantile` needs more clients in a round: the noisy count of unclipped updates (noise "
            f"{count_noise:g}) spends more by itself than a noise multiplier of {noise:g} allows. Let more than "
            f"{noise / (2 * _COUNT_NOISE):g} clients be drawn, or give a smaller `noise_multiplier`."
        )
    return float(room**-0.5)


def _check_clip(clip: float, noise_multiplier: float | None) -> None:
    infinite = is_number(clip) and clip == math.inf
    if not (is_finite(clip) and clip > 0) and not (infinite and noise_multiplier == 0):
        raise ValueError(
            f"`clip` must be a finite number greater than 0, got {got(clip)}. It may be infinite only "
            "with `noise_multiplier=0`."
        )
