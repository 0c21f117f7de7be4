"""The largest values."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fl_lightning.parts.exchange.compressor import Link
from fl_lightning.parts.exchange.share import ShareCompressor
from fl_lightning.parts.traffic import Payload


class TopK(ShareCompressor):
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
        super().__init__(fraction, error_feedback, link)

    def compress(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Return the largest values, and 0 elsewhere."""
        largest = values.abs().topk(self.number_of(len(values))).indices
        return torch.zeros_like(values).index_copy(0, largest, values[largest])

    def encoded(self, payload: Payload) -> Payload:
        """Return the size of the values and their positions."""
        return payload.sparse(self.number_of(payload.values), of=payload.values)
