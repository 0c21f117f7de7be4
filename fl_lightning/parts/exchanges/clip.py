"""Updates of a bounded length."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from fl_lightning.parts.exchanges.base import Exchange
from fl_lightning.parts.messages import ClientResult
from fl_lightning.settings import Positive


@dataclass(eq=False)
class Clip(Exchange):
    """Scales a client's update down so that its L2 norm is at most ``norm`` (McMahan et al. 2018, DP-FedAvg).

    Args:
        norm: Largest L2 norm of an update, without personal parameters.

    Raises:
        ValueError: If ``norm`` is not a finite number greater than 0.
    """

    runs_at = "client"
    norm: Positive

    @override
    def upload(self, result: ClientResult) -> ClientResult:
        return self.clipped(result, self.norm)
