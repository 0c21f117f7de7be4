"""Local differential privacy: every client adds noise to its own update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.exchanges.base import Exchange
from fl_lightning.parts.exchanges.privacy.accounting import (
    check_installed,
    check_nothing_spent,
    epsilon_of_clients,
    warn_of_large_delta,
)
from fl_lightning.parts.exchanges.privacy.disclosure import HINT, MORE, parts_that_send_more
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult
from fl_lightning.seeding import Stream
from fl_lightning.settings import NotNegative, Positive, Probability, check_fields

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


@dataclass(eq=False)
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
            stands before it; in a round, if training changes buffers.
    """

    runs_at = "client"
    clip: Positive
    _: KW_ONLY
    noise_multiplier: NotNegative
    delta: Probability
    fills_zeros = True
    draws_secretly: ClassVar[bool] = True

    @override
    def __post_init__(self) -> None:
        check_fields(self)
        check_installed()

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether clients send something without noise."""
        for part in parts_that_send_more(algorithm):
            yield f"LocalDifferentialPrivacy would log a wrong epsilon: with {part!r} {MORE} may leave them. {HINT}"

    @override
    def check_another_fit(self) -> None:
        """Raise ``ValueError`` if this part has trained the model before: it would count from 0."""
        check_nothing_spent("LocalDifferentialPrivacy", self.spent)

    @override
    def setup(self, federation: Federation) -> None:
        warn_of_large_delta("LocalDifferentialPrivacy", self.delta, federation.num_clients, "clients")
        #: How often each client sent an update, by noise.
        self.releases: dict[float, dict[int, int]]
        self.add_state("releases", {})

    @override
    def on_round_start(self, round_index: int) -> None:
        self._new: list[int] = []

    @override
    def upload(self, result: ClientResult) -> ClientResult:
        """Return the result with the clipped update and its noise."""
        self.check_buffers(result)
        update = self.sent_update(result)
        exact = update.double()
        norm: Tensor = torch.linalg.vector_norm(exact)
        clipped = exact * (self.clip / norm).clamp(max=1.0)
        generator = self.generator(result.task, self.place, stream=Stream.PRIVACY)
        noise = torch.randn(exact.shape, generator=generator, dtype=torch.float64).to(exact)
        noisy = clipped + self.noise_multiplier * self.clip * noise
        self._new.append(result.client)
        return self.with_sent_update(result, noisy.to(update.dtype))

    @override
    def on_upload_elsewhere(self, result: ClientResult) -> None:
        """Count what the client has sent."""
        self._new.append(result.client)

    @override
    def on_round_end(self) -> None:
        """Count what was sent, on all processes."""
        new = Counter[int]()
        for share in self.federation.gather(self._new):
            new.update(share)
        if not new:
            return
        # In units of what one update may change, which is twice the clip.
        noise = self.noise_multiplier / 2
        counts = Counter(self.releases.get(noise, {})) + new
        self.releases = {**self.releases, noise: dict(counts)}

    @property
    def spent(self) -> float:
        """Epsilon so far of the client that sent most; an upper bound of it if a resumed run had another noise."""
        return epsilon_of_clients(self.releases, self.delta)

    @override
    def values(self) -> dict[str, float]:
        """Return epsilon so far, and its delta."""
        return {"fed/local_epsilon": self.spent, "fed/local_delta": self.delta}
