"""Compressors that send a share of the values."""

from __future__ import annotations

from abc import ABC

from fl_lightning.arguments import check_interval, plain
from fl_lightning.parts.exchange.compressor import Compressor, Link


class ShareCompressor(Compressor, ABC):
    """Sends a share of the values.

    Args:
        fraction: The share, in (0, 1]; rounded down, at least one value.
        error_feedback: As in :class:`Compressor`.
        link: ``"up"`` or ``"down"``; see :class:`Compressor`.
    """

    def __init__(self, fraction: float, error_feedback: bool | None, link: Link) -> None:
        check_interval("fraction", fraction, "0.01 sends one value of a hundred.", within="(0, 1]")
        super().__init__(link, error_feedback)
        self.fraction = float(plain(fraction))

    def number_of(self, values: int) -> int:
        """Return how many of so many values are sent: rounded down, at least 1."""
        # nine decimals keep 0.29 * 100 = 28.999999999999996 from becoming 28
        return min(values, max(1, int(round(self.fraction * values, 9))))
