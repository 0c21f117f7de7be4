"""Attackers that know what the honest clients send."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.arguments import check_finite, check_positive
from fl_lightning.parts.attacks.base import Collusion


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

    def __init__(self, clients: float | Sequence[int], z: float | None = None) -> None:
        if z is not None:
            check_finite("z", z, "None takes that of the paper.")
        super().__init__(clients)
        self.z = z

    def forged(self, honest: Tensor, attackers: int) -> Tensor:
        """Return the shifted mean; the mean itself of one honest update, whose spread is not known."""
        z = _largest_z(len(honest), attackers) if self.z is None else self.z
        spread = honest.std(0) if len(honest) > 1 else torch.zeros_like(honest[0])
        return honest.mean(0) - z * spread


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

    def __init__(self, clients: float | Sequence[int], scale: float = 0.1) -> None:
        check_positive("scale", scale)
        super().__init__(clients)
        self.scale = scale

    def forged(self, honest: Tensor, attackers: int) -> Tensor:
        """Return the opposite of the mean."""
        return -self.scale * honest.mean(0)


class Mimic(Collusion):
    """Attackers send what the honest client with the lowest position sends (Karimireddy et al. 2022).

    This cannot be detected. If clients' data differ, one client gets too much weight.

    Args:
        clients: The attackers; see :class:`Attack`.

    Raises:
        TypeError: If positions of clients are no whole numbers.
        ValueError: If the share is out of its range.
    """

    def forged(self, honest: Tensor, attackers: int) -> Tensor:
        """Return the first honest update."""
        return honest[0]


def _largest_z(honest: int, attackers: int) -> float:
    """Return the z of Baruch et al. 2019, Algorithm 3; 0 if the attackers are a majority."""
    clients = honest + attackers
    supporters = clients // 2 + 1 - attackers
    share = min(max((clients - max(supporters, 1)) / clients, 0.5), 1 - 1e-6)
    return float(torch.special.ndtri(torch.tensor(share, dtype=torch.float64)))
