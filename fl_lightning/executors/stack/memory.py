"""The number of models that fit into memory at once."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from fl_lightning.clients.training import LocalTraining
from fl_lightning.parts.messages import Task

#: A stack's share of all memory, not of what is free at the moment: a stack's size decides on roundings.
_SHARE = 0.125
#: Copies of a model: weights, gradients, optimizer state, start, correction, result.
_COPIES = 6
#: Bytes of weights of a stack on a CPU; steps of larger ones wait for memory, and gain nothing.
_CPU_STACK = 32 * 2**20


def memory_budget(training: LocalTraining) -> float:
    """Return the bytes that a stack may take: an eighth of the memory, shared by the processes of a machine."""
    device = training.vector.device
    budget = _SHARE * total_memory(device)
    if device.type == "cpu":
        budget /= max(1, training.trainer.world_size // training.trainer.num_nodes)
    return budget


def clients_that_fit(training: LocalTraining, tasks: Sequence[Task]) -> int:
    """Return how many of the clients may train at once: their models and an epoch of their samples fit the budget.

    On a CPU their weights take 32 MiB at most.

    Args:
        training: Trains clients.
        tasks: The tasks.

    Returns:
        At least 1.
    """
    weights = _weights(training)
    samples = max(task.num_samples for task in tasks) * (training.batches.bytes_per_sample or 0)
    most = min(len(tasks), memory_budget(training) / max(1, _COPIES * weights + samples))
    if training.vector.device.type == "cpu":
        most = min(most, _CPU_STACK // max(1, weights))
    return max(1, int(most))


def why_one_fits(training: LocalTraining) -> str:
    """Return why no two clients may train at once."""
    if training.vector.device.type == "cpu" and 2 * _weights(training) > _CPU_STACK:
        return (
            f"two models have more than the {_CPU_STACK // 2**20} MiB of weights beyond which a stack waits for memory"
        )
    return "the memory holds one client's model at a time"


def _weights(training: LocalTraining) -> int:
    """Return the bytes of a model's values that travel."""
    vector = training.vector
    return vector.layout.size * torch.empty((), dtype=vector.dtype).element_size()


def total_memory(device: torch.device) -> float:
    """Return the memory of a device in bytes; infinite where it cannot be told."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return float("inf")
