"""Convolutions with channels last in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

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
    weights: list[nn.Parameter] = []
    for part in module.modules():
        # There is none where it is computed, as by weight_norm.
        kernel = part._parameters.get("weight") if isinstance(part, _CONVOLUTIONS) else None
        # A view of other memory would no longer be one, nor have its own strides afterwards.
        if kernel is None or not kernel.is_contiguous():
            continue
        # Of a kernel with one input channel, PyTorch counts either layout as the other: the strides tell them apart.
        if kernel.stride() != torch.empty_like(kernel, memory_format=torch.channels_last).stride():
            weights.append(kernel)
    try:
        for weight in weights:
            weight.data = weight.data.clone(memory_format=torch.channels_last)
        yield bool(weights)
    finally:
        for weight in weights:
            weight.data = weight.data.clone(memory_format=torch.contiguous_format)


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
