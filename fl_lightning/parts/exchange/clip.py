"""Bounded updates."""

from __future__ import annotations

import torch

from fl_lightning.arguments import check_positive, plain
from fl_lightning.parts.exchange.base import Exchange
from fl_lightning.parts.federation import ClientResult


class Clip(Exchange):
    """Scales a client's update down so that its L2 norm is at most ``norm`` (McMahan et al. 2018, DP-FedAvg).

    The norm covers the trained parameters that are sent. Buffers and personal parameters pass unchanged, and so do
    shorter updates. After an attack in the list of exchanges, this is the server's norm bounding (Sun et al.
    2019).

    Args:
        norm: Largest norm, greater than 0.

    Raises:
        ValueError: If ``norm`` is not a finite number greater than 0.
    """

    def __init__(self, norm: float) -> None:
        check_positive("norm", norm)
        self.norm = plain(norm)

    def upload(self, result: ClientResult) -> ClientResult:
        """Return the result with the clipped update."""
        update = self.sent_update(result)
        length = float(torch.linalg.vector_norm(update.double()))
        return result if length <= self.norm else self.with_sent_update(result, update * (self.norm / length))
