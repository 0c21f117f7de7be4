"""How many models fit into memory at once."""

from __future__ import annotations

import os

import torch

from fl_lightning.clients.training import LocalTraining

_SHARE = 0.25  # of the free memory; what a forward pass keeps is not known beforehand
_COPIES = 6  # of a model: weights, gradients, optimizer state, start, correction, result
_CPU_STACK = 32 * 2**20  # bytes of weights; steps of larger stacks wait for memory, and gain nothing


def clients_that_fit(clients: LocalTraining) -> int:
    """Return how many clients may train at once: their models and an epoch of their samples take a quarter.

    On a CPU their weights take 32 MiB at most. The largest client counts for all.

    Args:
        clients: Trains clients.

    Returns:
        At least 1.
    """
    vector = clients.vector
    weights = vector.size * torch.empty((), dtype=vector.dtype).element_size()
    on_cpu = vector.device.type == "cpu"
    # processes of one machine share its memory
    share = _SHARE * free_memory(vector.device) / (clients.trainer.world_size if on_cpu else 1)
    samples = int(clients.data.client_sizes.max()) * clients.batches.bytes_per_sample
    most = min(clients.data.num_clients, share / max(1, _COPIES * weights + samples))
    return max(1, int(min(most, _CPU_STACK // max(1, weights)) if on_cpu else most))


def free_memory(device: torch.device) -> float:
    """Return the free memory of a device in bytes; infinite where it cannot be told."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return float("inf")
