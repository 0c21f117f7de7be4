"""Weights of convolutions with channels last in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def channels_last(module: nn.Module) -> Iterator[bool]:
    """Hold the weights of convolutions in ``torch.channels_last``; what they compute then has that layout too.

    Values and shapes stay; on a CPU pooling and convolutions are faster that way, and sums are taken in another order.

    Args:
        module: The module.

    Yields:
        Whether there is a weight whose layout changed.
    """
    weights = [
        p for p in module.parameters() if p.dim() == 4 and not p.is_contiguous(memory_format=torch.channels_last)
    ]
    try:
        for weight in weights:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        yield bool(weights)
    finally:
        for weight in weights:
            weight.data = weight.data.contiguous()
