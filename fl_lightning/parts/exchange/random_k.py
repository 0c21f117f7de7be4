"""Values at random places."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.parts.exchange.compressor import Link
from fl_lightning.parts.exchange.share import ShareCompressor
from fl_lightning.parts.traffic import Payload


class RandomK(ShareCompressor):
    """Sends the values at places drawn uniformly, without replacement (Konecny et al. 2016, random mask).

    Both sides draw the places from the run's seed, the round and the client, so that no position is sent. Without error
    feedback the k of n values are multiplied by ``n / k``: the mean over the places is the update itself, and the mean
    squared error is ``(n / k - 1) |update|^2``. With error feedback, or on the way down, they are sent as they are.

    Args:
        fraction: Share of the values that is sent, in (0, 1]; rounded down, at least one value.
        error_feedback: Whether the client adds the remainder to its next update; on the way down it always does.
        link: ``"up"`` or ``"down"``; see :class:`Compressor`.

    Raises:
        TypeError: If ``error_feedback`` is no boolean.
        ValueError: If another argument is out of its range.
    """

    def __init__(self, fraction: float, error_feedback: bool | None = None, link: Link = "up") -> None:
        super().__init__(fraction, error_feedback, link)

    def compress(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Return the values at the drawn places, and 0 elsewhere."""
        number = self.number_of(len(values))
        places = torch.randperm(len(values), generator=generator)[:number].to(values.device)
        scale = 1.0 if self.error_feedback else len(values) / max(1, number)
        return torch.zeros_like(values).index_copy(0, places, scale * values[places])

    def encoded(self, payload: Payload) -> Payload:
        """Return the size of the values; both sides know their places."""
        return Payload(self.number_of(payload.values), payload.bits_per_value, payload.extra_bits)
