"""Signs and one scale."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from fl_lightning.parts.exchange.compressor import Compressor, Link
from fl_lightning.parts.traffic import Payload


class SignSGD(Compressor):
    """Sends the signs of the values and their mean magnitude: ``sign(v) |v|_1 / n`` (Karimireddy et al. 2019).

    One bit a value, and one number; 0 counts as positive. Without error feedback this is biased and need not converge
    (Bernstein et al. 2018 vote by majority instead).

    Args:
        error_feedback: Whether the client adds the remainder to its next update.
        link: ``"up"`` or ``"down"``; see :class:`Compressor`.

    Raises:
        TypeError: If ``error_feedback`` is neither True nor False.
        ValueError: If another argument is out of its range.
    """

    feeds_back: ClassVar[bool] = True

    def __init__(self, error_feedback: bool = True, link: Link = "up") -> None:
        super().__init__(link, error_feedback)

    def compress(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Return the scaled signs."""
        scale = values.abs().double().mean().to(values.dtype)
        return torch.where(values >= 0, scale, -scale)

    def encoded(self, payload: Payload) -> Payload:
        """Return the size of the signs and the scale."""
        return payload.quantized(1, math.ceil(payload.bits_per_value))
