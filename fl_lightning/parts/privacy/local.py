"""Local differential privacy: every client adds noise to its own update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fl_lightning.arguments import check_interval, check_not_negative, check_positive, plain
from fl_lightning.parts.exchange.base import Exchange
from fl_lightning.parts.federation import ClientResult, Federation
from fl_lightning.parts.privacy.accounting import Ledger, check_installed, refuse_another_fit
from fl_lightning.parts.privacy.analysed import sends_more
from fl_lightning.parts.saved_results import other_class
from fl_lightning.seeding import Stream, torch_generator


class LocalDifferentialPrivacy(Exchange):
    """Clients clip their update and add noise ``N(0, (z clip)^2)`` to it before it leaves them.

    The server need not be trusted. Later processing cannot weaken the guarantee, so this works with every schedule,
    aggregation and later exchange. Compressions come later, too. Neighbours are two updates of one client, which differ
    by up to twice the clip. Each update that a client sends is one Gaussian mechanism. ``fed/local_epsilon`` is the
    epsilon of the client that sent most updates. Drawing clients at random does not lower it, because the server knows
    who sends. Useful models need far more clients than with :class:`DifferentialPrivacy`.

    Args:
        clip: Largest L2 norm of an update, greater than 0.
        noise_multiplier: z, at least 0.
        delta: Probability with which the guarantee may fail, in (0, 1).

    Raises:
        ModuleNotFoundError: If dp-accounting is not installed.
        ValueError: If an argument is out of its range, clients send more than updates, or a compression on the way up
            stands before it; in a round, if training changes buffers, or an exchange before it adds more to a result.
    """

    fills_zeros = True

    def __init__(self, clip: float, *, noise_multiplier: float, delta: float) -> None:
        check_positive("clip", clip)
        check_not_negative("noise_multiplier", noise_multiplier)
        check_interval("delta", delta, "1e-5 is usual.", within="(0, 1)")
        check_installed()
        self.clip, self.noise_multiplier, self.delta = plain(clip), plain(noise_multiplier), plain(delta)
        self._sent = Ledger()
        self._new: list[int] = []

    def check_beside(self, parts: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` if clients send something without noise."""
        objective, sampler = parts["objective"], parts["sampler"]
        asking = ([objective] if sends_more(objective) else []) + ([sampler] if sampler.sends_scores else [])
        if asking:
            names = " and ".join(type(part).__name__ for part in asking)
            raise ValueError(
                f"LocalDifferentialPrivacy would log a wrong epsilon for this run: with {names} clients send more than "
                "their updates. Use FedAvg, FedProx, RADFed or FedBuff, without a sampler that asks for scores."
            )

    def check_another_fit(self) -> None:
        """Raise ``ValueError`` if this part has trained the model before: it would count from 0."""
        refuse_another_fit("LocalDifferentialPrivacy", self.spent)

    def on_fit_start(self, federation: Federation) -> None:
        """Start with nothing sent."""
        self._sent, self._new = Ledger(), []

    def upload(self, result: ClientResult) -> ClientResult:
        """Return the result with the clipped update and its noise."""
        if result.score is not None or result.loss is not None or other_class(result) is not None:
            raise ValueError(
                "LocalDifferentialPrivacy would log a wrong epsilon for this run: an exchange before it puts something "
                "beside the update into the result, which would be sent without noise: a score, a loss, or a field of "
                "a class of its own. Put that exchange after LocalDifferentialPrivacy, so that it sees the update with "
                "its noise."
            )
        if result.changes_buffers:
            raise ValueError(
                "Training changes buffers of the module, such as BatchNorm's statistics, and LocalDifferentialPrivacy "
                'protects only trained parameters. Give `buffers="server"`, which drops the clients\' buffers, or use '
                "layers without statistics, such as GroupNorm."
            )
        update, task = self.sent_update(result), result.task
        exact = update.double()
        clipped = exact * (self.clip / torch.linalg.vector_norm(exact)).clamp(max=1.0)
        generator = torch_generator(self.federation.seed, Stream.PRIVACY, self._place_in_chain, *task.seeds)
        noise = torch.randn(exact.shape, generator=generator, dtype=torch.float64).to(exact)
        self._new.append(task.client)
        return self.with_sent_update(result, (clipped + self.noise_multiplier * self.clip * noise).to(update.dtype))

    def on_round_end(self) -> None:
        """Count what was sent, on all processes."""
        super().on_round_end()
        for client in (client for share in self.federation.gather(self._new) for client in share):
            self._sent.add(client, self.noise_multiplier / 2)
        self._new = []

    def on_round_abort(self) -> None:
        """Forget the round."""
        super().on_round_abort()
        self._new = []

    @property
    def spent(self) -> float:
        """Epsilon so far of the client that sent most; an upper bound of it if a resumed run had another noise."""
        return self._sent.epsilon(self.delta)

    def values(self) -> dict[str, float]:
        """Return epsilon so far, and its delta."""
        return {"fed/local_epsilon": self.spent, "fed/local_delta": self.delta}

    def state_dict(self) -> dict[str, Any]:
        """Return how much each client sent."""
        return {"sent": self._sent.state_dict(), "epsilon": self.spent, "delta": self.delta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what a checkpoint's run has sent."""
        self._sent.load_state_dict(state["sent"])
