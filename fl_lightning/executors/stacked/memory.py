"""How many models fit into memory at once."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from fl_lightning.clients.training import LocalTraining
from fl_lightning.parts.federation import Task

_SHARE = 0.25  # of the free memory; what a forward pass keeps is not known beforehand
_COPIES = 6  # of a model: weights, gradients, optimizer state, start, correction, result
_CPU_STACK = 32 * 2**20  # bytes of weights; steps of larger stacks wait for memory, and gain nothing


def memory_budget(clients: LocalTraining) -> float:
    """Return the bytes that a stack may take: a quarter of what is free, shared by the processes of a machine."""
    device = clients.vector.device
    return _SHARE * free_memory(device) / (clients.trainer.world_size if device.type == "cpu" else 1)


def clients_that_fit(clients: LocalTraining, tasks: Sequence[Task], budget: float) -> int:
    """Return how many of the clients may train at once: their models and an epoch of their samples fit the budget.

    On a CPU their weights take 32 MiB at most.

    Args:
        clients: Trains clients.
        tasks: The tasks.
        budget: Bytes.

    Returns:
        At least 1.
    """
    vector = clients.vector
    weights = vector.size * torch.empty((), dtype=vector.dtype).element_size()
    samples = max(task.num_samples for task in tasks) * clients.batches.bytes_per_sample
    most = min(len(tasks), budget / max(1, _COPIES * weights + samples))
    return max(1, int(min(most, _CPU_STACK // max(1, weights)) if vector.device.type == "cpu" else most))


def free_memory(device: torch.device) -> float:
    """Return the free memory of a device in bytes; infinite where it cannot be told."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return float("inf")
