"""How many models fit into memory at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fl_lightning.federation import Task

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop

_SHARE = 0.25  # of the free memory; what a forward pass keeps is not known beforehand
_COPIES = 6  # of a model: weights, gradients, optimizer state, start, correction, result


def clients_that_fit(loop: FederatedLoop, tasks: Sequence[Task]) -> int:
    """Return how many of the clients may train at once: their models and an epoch of their samples take a quarter.

    Args:
        loop: The loop.
        tasks: The tasks.

    Returns:
        At least 1.
    """
    vector = loop.vector
    model = _COPIES * vector.size * torch.empty((), dtype=vector.dtype).element_size()
    # processes of one machine share its memory
    share = _SHARE * free_memory(vector.device) / (loop.trainer.world_size if vector.device.type == "cpu" else 1)
    samples = max(task.num_samples for task in tasks) * loop.bytes_per_sample
    return max(1, min(len(tasks), int(share / (model + samples))))


def free_memory(device: torch.device) -> float:
    """Return the free memory of a device in bytes; infinite where it cannot be told."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return float("inf")
