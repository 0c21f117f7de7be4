"""The largest values."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fl_lightning.arguments import check_interval, plain
from fl_lightning.parts.exchange.compressor import Compressor, Link
from fl_lightning.parts.traffic import Payload


class TopK(Compressor):
    """Sends the values of the largest magnitude, each with its position (Aji and Heafield 2017, Stich et al. 2018).

    A position among n values takes ``ceil(log2 n)`` bits.

    Args:
        fraction: Share of the values that is sent, in (0, 1]; rounded down, at least one value.
        error_feedback: Whether the client adds the remainder to its next update.
        link: ``"up"`` or ``"down"``; see :class:`Compressor`.

    Raises:
        TypeError: If ``error_feedback`` is neither True nor False.
        ValueError: If another argument is out of its range.
    """

    feeds_back: ClassVar[bool] = True

    def __init__(self, fraction: float, error_feedback: bool = True, link: Link = "up") -> None:
        check_interval("fraction", fraction, "0.01 sends one value of a hundred.", within="(0, 1]")
        super().__init__(link, error_feedback)
        self.fraction = float(plain(fraction))

    def compress(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Return the largest values, and 0 elsewhere."""
        largest = values.abs().topk(number_of(self.fraction, len(values))).indices
        return torch.zeros_like(values).index_copy(0, largest, values[largest])

    def encoded(self, payload: Payload) -> Payload:
        """Return the size of the values and their positions."""
        return payload.sparse(number_of(self.fraction, payload.values), of=payload.values)


def number_of(fraction: float, values: int) -> int:
    """Return how many of so many values a share is: rounded down, at least 1."""
    # nine decimals keep 0.29 * 100 = 28.999999999999996 from becoming 28
    return min(values, max(1, int(round(fraction * values, 9))))
