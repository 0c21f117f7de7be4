"""Draws the clients of a round by a sampler, and checks that they are distinct and can be reached."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

import numpy as np

from fl_lightning.arguments import got
from fl_lightning.parts.sampling import ClientSampler


def draw_cohort(
    sampler: ClientSampler, num_clients: int, rng: np.random.Generator, available: np.ndarray | None
) -> np.ndarray:
    """Return the clients of a round in random order, even if the sampler sorts them.

    Args:
        sampler: Draws them.
        num_clients: K.
        rng: The round's generator.
        available: The clients that can be reached, sorted; ``None`` for all.

    Raises:
        ValueError: If the sampler does not return distinct clients that can be reached.
    """
    drawn = sampler.draw(num_clients, rng, available)
    clients = np.asarray(drawn)
    if clients.size == 0:
        return np.empty(0, dtype=np.int64)
    valid = clients.ndim == 1 and clients.dtype.kind in "iu"
    if not valid or len(np.unique(clients)) < len(clients) or not 0 <= clients.min() <= clients.max() < num_clients:
        raise ValueError(
            f"`{type(sampler).__name__}.draw` must return distinct whole numbers from 0 to {num_clients - 1}, the "
            f"round's clients, got {got(clients.tolist() if valid else drawn)}. {_way_out(drawn, clients)}"
        )
    if available is not None and (absent := sorted(set(clients.tolist()) - set(available.tolist()))):
        raise ValueError(
            f"`{type(sampler).__name__}.draw` returned clients that cannot be reached in this round: {absent}. Draw "
            "from `available`, where it is not None."
        )
    return clients if sampler.draws_in_random_order else rng.permutation(clients)


def _way_out(drawn: Any, clients: np.ndarray) -> str:
    """Return the hint for a sampler that drew something else than clients; ``clients`` is an array made of it."""
    if drawn is None:
        return "Is a `return` missing at its end?"
    if isinstance(drawn, Iterable) and clients.ndim == 0:
        order = "sorted" if isinstance(drawn, Set) else "list"
        return f"Make an array of it with `np.array({order}(clients))`."
    if clients.dtype == bool:
        return "Turn a boolean mask into clients with `np.flatnonzero(mask)`."
    if clients.ndim != 1:
        return "Give one array with a client after the other, such as `np.array([3])`."
    if clients.dtype.kind not in "iu":
        return "Give integers, such as `clients.astype(int)`."
    if len(np.unique(clients)) < len(clients):
        return "Each client trains once in a round: draw without replacement, or keep `np.unique(clients)`."
    return "Each client trains once in a round, and clients are numbered by position."
