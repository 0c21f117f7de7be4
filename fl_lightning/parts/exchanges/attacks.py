"""Clients that do not send the update that they trained, for studies of robustness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.exchanges.base import Exchange
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult
from fl_lightning.seeding import Stream, numpy_generator
from fl_lightning.settings import Finite, Fraction, Natural, Positive
from fl_lightning.vectors import checked_vector, share_of

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


@dataclass(eq=False)
class Attack(Exchange):
    """Some clients are attackers.

    Attackers do not send the parameters that they trained. Buffers and personal parameters stay unchanged.

    Attributes:
        clients: The attackers: a share of the clients in [0, 1), rounded down and drawn by the run's seed, or the
            positions of the clients.
        attackers: The attackers' positions, once the fit has begun.

    Raises:
        TypeError: If positions are no whole numbers.
        ValueError: If the share is out of its range, or a client is named twice; when the fit begins, if one does not
            exist.
    """

    clients: Fraction | Sequence[Natural]

    @override
    def setup(self, federation: Federation) -> None:
        number = federation.num_clients
        if not isinstance(self.clients, Sequence):
            order = numpy_generator(federation.seed, Stream.ATTACK).permutation(number)
            attackers = int(share_of(self.clients, number))
            self.attackers = frozenset(order[:attackers].tolist())
            return
        self.attackers = frozenset(self.clients)
        if max(self.attackers, default=0) >= number:
            raise ValueError(f"`clients` must be from 0 to {number - 1}, the clients that train, got {self.clients}.")


class LocalAttack(Attack, ABC):
    """An attacker knows only its own update."""

    @override
    def upload(self, result: ClientResult) -> ClientResult:
        if result.client not in self.attackers:
            return result
        update = self.sent_update(result)
        generator = self.generator(result.task, self.place, stream=Stream.ATTACK)
        forged = checked_vector(self, "forge", self.forge(update, generator), update)
        return self.with_sent_update(result, forged)

    @abstractmethod
    def forge(self, update: Tensor, generator: torch.Generator) -> Tensor:
        """Return what an attacker sends, shape ``(num_sent,)``.

        Args:
            update: What it trained, shape ``(num_sent,)``; not to be written to.
            generator: For what is drawn, on the CPU.
        """


class Collusion(Attack, ABC):
    """The attackers of a round know what the honest clients send, and all send the same.

    They come last: later exchanges have already changed the updates. To let the server bound the attackers' updates,
    use ``NormBounding`` of a robust aggregation.
    """

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether the server has no updates of clients to look at."""
        if algorithm.schedule.hides_clients:
            yield f"`exchange` cannot have {self!r}, which replaces clients' updates, with {algorithm.schedule!r}."

    @override
    def collude(self, results: Sequence[ClientResult]) -> Sequence[ClientResult]:
        """Return a round's results with the attackers' replaced; unchanged if all or none are attackers."""
        honest = [result for result in results if result.client not in self.attackers]
        if not honest or len(honest) == len(results):
            return results
        honest.sort(key=lambda result: (result.client, result.task.slot))
        rows = torch.stack([self.sent_update(result).double() for result in honest])
        attackers = len(results) - len(honest)
        forged = checked_vector(self, "forge", self.forge(rows, attackers), rows[0])
        seen: list[ClientResult] = []
        for result in results:
            is_honest = result.client not in self.attackers
            seen.append(result if is_honest else self.with_sent_update(result, forged))
        return seen

    @abstractmethod
    def forge(self, honest: Tensor, attackers: int) -> Tensor:
        """Return what every attacker sends, shape ``(num_sent,)``.

        Args:
            honest: The honest clients' updates, in the order of clients, float64 of shape ``(honest, num_sent)``; not
                to be written to.
            attackers: How many attackers the round has.
        """


@dataclass(eq=False)
class SignFlipping(LocalAttack):
    """Attackers send ``-scale`` times their update (Li et al. 2019, RSA).

    Args:
        clients: The attackers; see :class:`Attack`.
        scale: Greater than 0.

    Raises:
        TypeError: If positions of clients are no whole numbers.
        ValueError: If an argument is out of its range.
    """

    scale: Positive = 1.0

    @override
    def forge(self, update: Tensor, generator: torch.Generator) -> Tensor:
        return -self.scale * update


@dataclass(eq=False)
class GaussianAttack(LocalAttack):
    """Attackers send random numbers from N(0, std^2) (Blanchard et al. 2017).

    Args:
        clients: The attackers; see :class:`Attack`.
        std: Standard deviation of each number, greater than 0, in the units of updates.

    Raises:
        TypeError: If positions of clients are no whole numbers.
        ValueError: If an argument is out of its range, or a compression on the way up stands before it.
    """

    std: Positive = 1.0
    fills_zeros = True

    @override
    def forge(self, update: Tensor, generator: torch.Generator) -> Tensor:
        drawn = torch.randn(update.shape, generator=generator, dtype=torch.float64)
        return self.std * drawn.to(update)


@dataclass(eq=False)
class ALittleIsEnough(Collusion):
    """Attackers send the honest mean minus z standard deviations of each parameter (Baruch et al. 2019).

    This lies within the spread of honest updates, but it moves robust rules a little in every round.

    Args:
        clients: The attackers; see :class:`Attack`.
        z: Number of standard deviations; a negative number shifts to the other side. ``None`` takes the paper's largest
            z for which enough honest clients lie farther away: ``Phi(z) = (m - s) / m`` with ``s = m // 2 + 1 - f``
            supporters, of m clients with f attackers among them.

    Raises:
        TypeError: If positions of clients are no whole numbers.
        ValueError: If an argument is out of its range.
    """

    z: Finite | None = None

    @override
    def forge(self, honest: Tensor, attackers: int) -> Tensor:
        """Return the shifted mean; the mean itself of one honest update, whose spread is not known."""
        z = _largest_z(len(honest), attackers) if self.z is None else self.z
        spread = honest.std(0) if len(honest) > 1 else torch.zeros_like(honest[0])
        return honest.mean(0) - z * spread


@dataclass(eq=False)
class InnerProductManipulation(Collusion):
    """Attackers send ``-scale`` times the honest mean (Xie et al. 2020, Fall of Empires).

    Args:
        clients: The attackers; see :class:`Attack`.
        scale: epsilon of the paper, greater than 0. With a small one the update hides among the honest ones; a large
            one reverses a mean.

    Raises:
        TypeError: If positions of clients are no whole numbers.
        ValueError: If an argument is out of its range.
    """

    scale: Positive = 0.1

    @override
    def forge(self, honest: Tensor, attackers: int) -> Tensor:
        """Return the opposite of the mean."""
        return -self.scale * honest.mean(0)


@dataclass(eq=False)
class Mimic(Collusion):
    """Attackers send what the honest client with the lowest position sends (Karimireddy et al. 2022).

    This cannot be detected. If clients' data differ, one client gets too much weight.

    Args:
        clients: The attackers; see :class:`Attack`.

    Raises:
        TypeError: If positions of clients are no whole numbers.
        ValueError: If the share is out of its range.
    """

    @override
    def forge(self, honest: Tensor, attackers: int) -> Tensor:
        """Return the first honest update."""
        return honest[0]


def _largest_z(honest: int, attackers: int) -> float:
    """Return the z of Baruch et al. 2019, Algorithm 3; attackers that are a majority have one supporter, too."""
    clients = honest + attackers
    supporters = max(1, clients // 2 + 1 - attackers)
    # At least a half, and less than 1, so that z is at least 0 and finite.
    share = (clients - supporters) / clients
    z = torch.special.ndtri(torch.tensor(share, dtype=torch.float64))
    return float(z)
