"""Clients that do not send the update that they trained, for studies of robustness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.arguments import got_number, is_number, plain, to_clients
from fl_lightning.parts.exchange.base import Exchange
from fl_lightning.parts.federation import ClientResult, Federation
from fl_lightning.parts.guards.contracts import call_for_vector
from fl_lightning.seeding import Stream, numpy_generator, torch_generator


class Attack(Exchange):
    """Some clients are attackers.

    Attackers do not send the parameters that they trained. Buffers and personal parameters stay unchanged.

    Args:
        clients: The attackers: a share of the clients in [0, 1), rounded down and drawn by the run's seed, or the
            positions of the clients.

    Raises:
        TypeError: If positions are no whole numbers.
        ValueError: If the share is out of its range, or a client is named twice; when the fit begins, if one does not
            exist.
    """

    def __init__(self, clients: float | Sequence[int]) -> None:
        is_single = is_number(clients) or getattr(clients, "shape", None) == ()
        self.clients = plain(clients) if is_single else to_clients(self, clients)
        if is_single and (not isinstance(self.clients, float) or not 0 <= self.clients < 1):
            raise ValueError(
                f"`clients` must be a share of them in [0, 1), or a list of their positions, got {got_number(clients)}"
                ". [3] is client 3."
            )
        self.attackers: frozenset[int] = frozenset()
        """The attackers' positions, once the fit has begun."""

    def on_fit_start(self, federation: Federation) -> None:
        """Choose the attackers."""
        self.attackers = chosen(self.clients, federation.num_clients, federation.seed)


class LocalAttack(Attack, ABC):
    """An attacker knows only its own update."""

    def upload(self, result: ClientResult) -> ClientResult:
        """Return what the client sends."""
        task = result.task
        if task.client not in self.attackers:
            return result
        generator = torch_generator(self.federation.seed, Stream.ATTACK, self._place_in_chain, *task.seeds)
        update = self.sent_update(result)
        what = f"({len(update)},), what the attacker sends"
        watch, lengths = (update,), (len(update),)
        forged = call_for_vector(self, "forged", update, generator, watch=watch, lengths=lengths, allowed=what)
        return self.with_sent_update(result, forged)

    @abstractmethod
    def forged(self, update: Tensor, generator: torch.Generator) -> Tensor:
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

    colludes = True

    def check_beside(self, parts: Mapping[str, Any]) -> None:
        """Raise ``ValueError`` where the server has no updates of clients to look at."""
        if parts["schedule"].keeps_models:
            raise ValueError(
                f"{type(self).__name__} needs the updates of a round's clients, but with "
                f"{type(parts['schedule']).__name__} the server gets models that many clients trained. Use an attack "
                "on single updates, such as SignFlipping, or another schedule."
            )

    def colluded(self, results: Sequence[ClientResult]) -> list[ClientResult]:
        """Return a round's results with the attackers' replaced; unchanged if all or none are attackers."""
        honest = [result for result in results if result.task.client not in self.attackers]
        if not honest or len(honest) == len(results):
            return list(results)
        honest.sort(key=lambda result: (result.task.client, result.task.slot))
        rows = torch.stack([self.sent_update(result).double() for result in honest])
        attackers, n = len(results) - len(honest), rows.shape[1]
        what = f"({n},), what every attacker sends"
        forged = call_for_vector(self, "forged", rows, attackers, watch=(rows,), lengths=(n,), allowed=what)
        forged = forged.to(results[0].vector.dtype)
        return [
            self.with_sent_update(result, forged) if result.task.client in self.attackers else result
            for result in results
        ]

    @abstractmethod
    def forged(self, honest: Tensor, attackers: int) -> Tensor:
        """Return what every attacker sends, shape ``(num_sent,)``.

        Args:
            honest: The honest clients' updates, in the order of clients, float64 of shape ``(honest, num_sent)``; not
                to be written to.
            attackers: How many attackers the round has.
        """


def chosen(clients: float | Sequence[int], num_clients: int, seed: int) -> frozenset[int]:
    """Return the positions of attackers.

    Args:
        clients: A share of the clients, rounded down, or their positions.
        num_clients: K.
        seed: The run's seed.

    Raises:
        ValueError: If a client does not exist.
    """
    if isinstance(clients, float):
        number = int(round(clients * num_clients, 9))
        drawn = numpy_generator(seed, Stream.ATTACK).permutation(num_clients)[:number]
        return frozenset(int(client) for client in drawn)
    wrong = [client for client in np.unique(clients).tolist() if not 0 <= client < num_clients]
    if wrong:
        raise ValueError(
            f"`clients` must be from 0 to {num_clients - 1}, got {wrong}. Clients are numbered by position; a share "
            "such as 0.2 draws them."
        )
    return frozenset(int(client) for client in clients)
