"""Convolutions with channels last in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeGuard

import torch
from torch import nn

from fl_lightning.clients.training import ClientAtWork, LocalTraining
from fl_lightning.parts.messages import Task
from fl_lightning.seeding import preserved_generators

log = logging.getLogger(__name__)

_CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)


@contextmanager
def channels_last(module: nn.Module) -> Iterator[bool]:
    """Hold the weights of convolutions in ``torch.channels_last``; what they compute then has that layout too.

    Values and shapes stay; on a CPU pooling and convolutions are faster that way, and sums are taken in another order.

    Args:
        module: The module.

    Yields:
        Whether there is a weight whose layout changed.
    """
    weights = [part.weight for part in module.modules() if _has_other_layout(part)]
    given = [weight.data for weight in weights]
    try:
        for weight in weights:
            weight.data = weight.data.clone(memory_format=torch.channels_last)
        yield bool(weights)
    finally:
        for weight, tensor in zip(weights, given, strict=True):
            weight.data = tensor.copy_(weight.data)


def _has_other_layout(part: nn.Module) -> TypeGuard[nn.Conv2d | nn.ConvTranspose2d]:
    """Whether a module is a convolution with a kernel that is not in ``torch.channels_last``, and should be."""
    if not isinstance(part, _CONVOLUTIONS):
        return False
    # There is none where it is computed, as by weight_norm.
    kernel = part._parameters.get("weight")
    # Others are views of some memory, which they would leave.
    if kernel is None or not kernel.is_contiguous() or kernel.untyped_storage().nbytes() > kernel.nbytes:
        return False
    if not kernel.is_contiguous(memory_format=torch.channels_last):
        return True
    # One channel has either layout for PyTorch, but its strides decide on that of the output. It helps the pooling of
    # float32 alone; kernels of one pixel, or for each channel alone, are slower that way.
    return part.in_channels == 1 and kernel.stride(1) > 1 and kernel.dtype == torch.float32


def works_with_channels_last(training: LocalTraining, task: Task) -> bool:
    """Whether there are convolutions, and one of the client's batches has a gradient with their channels last."""
    held = training.vector.read()
    client = ClientAtWork(task, held, held, training)
    try:
        with preserved_generators(training.vector.device), channels_last(training.vector.module) as changed:
            if changed:
                next(client.gradients())
    except Exception:
        # It is a `view` across channels, say; the module may well work as it is.
        log.debug("The module cannot be trained with channels last", exc_info=True)
        return False
    return changed
