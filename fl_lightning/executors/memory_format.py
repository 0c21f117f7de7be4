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
    convolutions = [m for m in module.modules() if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d))]
    kernels = [m._parameters.get("weight") for m in convolutions]  # None where it is computed, as by weight_norm
    contiguous = [kernel for kernel in kernels if kernel is not None and kernel.is_contiguous()]
    weights = [kernel for kernel in contiguous if not kernel.is_contiguous(memory_format=torch.channels_last)]
    try:
        for weight in weights:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        yield bool(weights)
    finally:
        for weight in weights:
            weight.data = weight.data.contiguous()
