"""Attacks on single updates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.arguments import check_positive
from fl_lightning.parts.attacks.base import LocalAttack


class SignFlipping(LocalAttack):
    """Attackers send ``-scale`` times their update (Li et al. 2019, RSA).

    Args:
        clients: The attackers; see :class:`Attack`.
        scale: Greater than 0.

    Raises:
        TypeError: If positions of clients are no whole numbers.
        ValueError: If an argument is out of its range.
    """

    def __init__(self, clients: float | Sequence[int], scale: float = 1.0) -> None:
        check_positive("scale", scale)
        super().__init__(clients)
        self.scale = scale

    def forged(self, update: Tensor, generator: torch.Generator) -> Tensor:
        """Return the opposite."""
        return -self.scale * update


class GaussianAttack(LocalAttack):
    """Attackers send random numbers from N(0, std^2) (Blanchard et al. 2017).

    Args:
        clients: The attackers; see :class:`Attack`.
        std: Standard deviation of each number, greater than 0, in the units of updates.

    Raises:
        TypeError: If positions of clients are no whole numbers.
        ValueError: If an argument is out of its range, or a compression on the way up stands before it.
    """

    fills_zeros = True

    def __init__(self, clients: float | Sequence[int], std: float = 1.0) -> None:
        check_positive("std", std)
        super().__init__(clients)
        self.std = std

    def forged(self, update: Tensor, generator: torch.Generator) -> Tensor:
        """Return random numbers."""
        return self.std * torch.randn(update.shape, generator=generator, dtype=torch.float64).to(update)
