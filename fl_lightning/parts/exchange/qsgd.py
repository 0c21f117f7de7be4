"""Values rounded at random to a few levels."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fl_lightning.arguments import check_count
from fl_lightning.parts.exchange.compressor import Compressor, Link
from fl_lightning.parts.traffic import Payload


class QSGD(Compressor):
    """Rounds each value at random to one of ``2^bits - 1`` levels (Alistarh et al. 2017).

    Within a bucket v of d values, ``v_i`` becomes ``|v| sign(v_i) l / s`` with ``s = 2^(bits-1) - 1`` and l one of the
    two whole numbers next to ``s |v_i| / |v|``, such that the mean is ``v_i``. The mean squared error is at most
    ``min(d / s^2, sqrt(d) / s) |v|^2``. A value takes a sign and ``bits - 1`` bits of l; a bucket also its norm. These
    are fixed lengths: the paper's Elias code can be shorter where most levels are 0.

    With error feedback, or on the way down, the rounded values are divided by ``1 + min(d / s^2, sqrt(d) / s)``, with d
    the bucket size or the number of values, if that is less. Without this division the error may be longer than the
    update, and what is owed would grow without end; with it the mean squared error is at most
    ``(1 - 1 / (1 + min(d / s^2, sqrt(d) / s))) |v|^2`` (Richtarik et al. 2021, scaled unbiased compressors).

    Args:
        bits: Bits of a value, 2 to 16; with 2 a value is -1, 0 or 1 times the norm.
        bucket_size: Values that share a norm: the smaller, the smaller the error, and the more norms are sent.
        error_feedback: Whether the client adds the rounding error to its next update; on the way down it always does.
        link: ``"up"`` or ``"down"``; see :class:`Compressor`.

    Raises:
        TypeError: If ``error_feedback`` is no boolean.
        ValueError: If another argument is out of its range.
    """

    def __init__(
        self, bits: int, bucket_size: int = 512, error_feedback: bool | None = None, link: Link = "up"
    ) -> None:
        check_count("bits", bits, 2, "One bit is a sign and one the smallest level; SignSGD() sends signs alone.")
        if bits > 16:
            raise ValueError(f"`bits` must be at most 16, got {bits}. More are hardly fewer than the value's own.")
        check_count("bucket_size", bucket_size)
        super().__init__(link, error_feedback)
        self.bits, self.bucket_size = int(bits), int(bucket_size)

    def compress(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Return the rounded values."""
        levels = self._levels
        buckets = F.pad(values, (0, -len(values) % self.bucket_size)).view(-1, self.bucket_size).double()
        norms = torch.linalg.vector_norm(buckets, dim=1, keepdim=True).to(values.dtype).double()  # as they are sent
        shares = levels * buckets.abs() / norms.where(norms > 0, 1.0)
        drawn = torch.rand(shares.shape, generator=generator, dtype=torch.float64).to(values.device)
        rounded = (shares + drawn).floor().clamp(max=levels)
        scale = 1 + self._error_bound(len(values)) if self.error_feedback else 1.0
        quantized: Tensor = norms * buckets.sign() * rounded / (levels * scale)
        return quantized.flatten()[: len(values)].to(values.dtype)

    @property
    def _levels(self) -> int:
        """The levels above 0, s."""
        return int(2 ** (self.bits - 1) - 1)

    def _error_bound(self, number: int) -> float:
        """Return the largest mean squared error of rounding so many values, as a multiple of their squared norm."""
        size = min(self.bucket_size, number)
        return min(size / self._levels**2, math.sqrt(size) / self._levels)

    def encoded(self, payload: Payload) -> Payload:
        """Return the size of signs, levels and norms."""
        norms = math.ceil(payload.values / self.bucket_size)
        return payload.quantized(self.bits, norms * math.ceil(payload.bits_per_value))
