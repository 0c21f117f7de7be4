"""Links that the messages of several clients share, and when messages on them arrive.

At each moment every message under way has its max-min fair rate: nobody can have more without taking from a message
that has no more than itself (Bertsekas and Gallager, *Data Networks*, 2nd edition, 1992, section 6.5.2). Of one link
that is an equal share; what a client with a slow line of its own leaves is shared by the others. For messages of 10
and 30 bits that begin together on a link of 10 bits per unit of time::

    0   both have 5
    2   the first has arrived; the second, of which 20 bits are left, has 10
    4   the second has arrived
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction

import numpy as np

from fl_lightning.settings import Natural, Positive, check_fields
from fl_lightning.signatures import ShowsArguments


@dataclass(eq=False, repr=False)
class SharedLink(ShowsArguments):
    """A link that several clients' messages share, such as the server's line or the access point of a group.

    Messages to clients and answers do not take from each other.

    Args:
        capacity: Bits of messages to clients that it carries per unit of virtual time, of all together.
        upload_capacity: The same of answers; as ``capacity`` if ``None``.
        clients: Whose messages it carries; those of all clients if ``None``.

    Raises:
        ValueError: If an argument is out of its range, or a client is there twice; when the fit begins, if a client
            does not exist.
    """

    capacity: Positive
    _: KW_ONLY
    upload_capacity: Positive | None = None
    clients: Sequence[Natural] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.clients is not None and not 0 < len(set(self.clients)) == len(self.clients):
            raise ValueError(f"`clients` of SharedLink must be clients, each once, got {self.clients}.")

    @property
    def capacity_up(self) -> float:
        """Bits of answers that it carries per unit of time."""
        return self.capacity if self.upload_capacity is None else self.upload_capacity

    def carries(self, num_clients: int) -> np.ndarray:
        """Return whether it carries each client's messages, shape ``(K,)``.

        Raises:
            ValueError: If one of its clients does not exist.
        """
        if self.clients is None:
            return np.ones(num_clients, bool)
        if max(self.clients) >= num_clients:
            raise ValueError(
                f"`clients` of a SharedLink must be training clients, 0 to {num_clients - 1}, got {max(self.clients)}."
            )
        is_carried = np.zeros(num_clients, bool)
        is_carried[self.clients] = True
        return is_carried


class Lines:
    """The lines that messages of one way go over: each client's own one, and those that are shared.

    Args:
        bits: Bits of each client's message, shape ``(K,)``.
        rates: Bits per unit of time of each client's own line; ``None`` for no limit.
        capacities: Those of each shared link, shape ``(L,)``.
        carries: Whether a link carries a client's messages, shape ``(L, K)``.

    Attributes:
        times_alone: How long each client's message takes on its own line.
    """

    def __init__(
        self, bits: Sequence[int], rates: Sequence[Fraction] | None, capacities: Sequence[float], carries: np.ndarray
    ) -> None:
        self.times_alone = [Fraction(0)] * len(bits)
        self.limits = np.full(len(bits), math.inf)
        if rates is not None:
            self.times_alone = [number / rate for number, rate in zip(bits, rates, strict=True)]
            self.limits = np.array(rates, float)
        self.bits = np.array(bits, float)
        self.capacities = np.array(capacities, float)
        self.carries = carries

    def arrivals(self, clients: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Return when messages arrive, shape ``(M,)``.

        Args:
            clients: The client of each message, shape ``(M,)``.
            starts: When each begins, shape ``(M,)``.
        """
        ends = starts.copy()
        left = self.bits[clients]
        # A message that nothing limits is there at once.
        to_come = np.isfinite(self.limits[clients]) | self.carries[:, clients].any(axis=0)
        now = -math.inf
        while to_come.any():
            has_begun = starts <= now
            under_way = np.flatnonzero(to_come & has_begun)
            next_start = starts[to_come & ~has_begun].min(initial=math.inf)
            if not len(under_way):
                now = next_start
                continue
            rates = self.fair_rates(clients[under_way])
            needed = left[under_way] / rates
            # Rates stay until a message arrives or another one begins.
            lasts = min(needed.min(), next_start - now)
            arrived = under_way[needed <= lasts]
            ends[arrived] = now + lasts
            to_come[arrived] = False
            left[under_way] = np.maximum(left[under_way] - rates * lasts, 0.0)
            now += lasts
        return ends

    def fair_rates(self, clients: np.ndarray) -> np.ndarray:
        """Return the max-min fair rates of messages under way, by progressive filling, shape ``(M,)``.

        Args:
            clients: The client of each message, shape ``(M,)``, each limited by its own line or by a link.
        """
        limits = self.limits[clients]
        carries = self.carries[:, clients]
        room = self.capacities.copy()
        rates = np.zeros(len(clients))
        is_open = np.ones(len(clients), bool)
        while is_open.any():
            users = carries[:, is_open].sum(axis=1)
            shares = np.full(len(room), math.inf)
            np.divide(room, users, out=shares, where=users > 0)
            share = shares.min(initial=math.inf)
            # Clients whose own lines are no faster than the smallest share leave the rest to the others.
            settled = is_open & (limits <= share)
            if settled.any():
                rates[settled] = limits[settled]
            else:
                settled = is_open & carries[shares.argmin()]
                rates[settled] = share
            room -= carries[:, settled] @ rates[settled]
            is_open &= ~settled
        return rates
