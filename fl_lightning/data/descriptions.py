"""Who trains, validates and tests, in words."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fl_lightning.data.federated_split import GLOBAL, FederatedSplit
from fl_lightning.words import quantity


def clients_in_words(split: FederatedSplit, validation: Mapping[int, np.ndarray]) -> str:
    """Return how many clients train, validate and test.

    Args:
        split: The samples of each client.
        validation: Those that validate: the split's, or those that test.
    """
    number = len(split.train)
    samples = sum(len(indices) for indices in split.train.values())
    clients = quantity(number, "client")
    if number < split.partition.num_clients:
        clients = f"{number:,} of {split.partition.num_clients:,} clients"
    train = "trains" if number == 1 else "train"
    validate = _evaluators(validation, "validate")
    test = _evaluators(split.test, "test")
    return f"{clients} {train} ({quantity(samples, 'sample')}), {validate} and {test}"


def _evaluators(parts: Mapping[int, np.ndarray], verb: str) -> str:
    """Return how many clients do something, or on how many samples of no client the server does."""
    if GLOBAL in parts:
        return f"the server {verb}s on {quantity(len(parts[GLOBAL]), 'sample')}"
    if not parts:
        return f"none {verb}s"
    return f"{len(parts):,} {verb}s" if len(parts) == 1 else f"{len(parts):,} {verb}"


def sets_of_clients(split: FederatedSplit) -> dict[str, list[int]] | None:
    """Return the clients of each set; ``None`` where a client may be in more than one set, or all are in one."""
    sets = {
        "train": list(split.train),
        "validation": list(split.val),
        "test": list(split.test),
    }
    sets_with_clients = 0
    seen: set[int] = set()
    for ids in sets.values():
        clients = set(ids) - {GLOBAL}
        if clients & seen:
            return None
        seen |= clients
        if clients:
            sets_with_clients += 1
    return sets if sets_with_clients > 1 else None
