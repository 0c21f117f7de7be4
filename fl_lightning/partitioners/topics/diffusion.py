"""Samples that diffuse along the relations between topics."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fl_lightning.arguments import check_count, check_instance, check_positive
from fl_lightning.partitioners.labels import check_labels
from fl_lightning.partitioners.statistics import label_entropy
from fl_lightning.partitioners.topics.graph import TopicGraph

DIFFUSION_SEED = 42
"""The thesis's seed."""


def diffuse(
    graph: TopicGraph, homes: np.ndarray, steps: int, *, stay_weight: float = 2.0, seed: int = DIFFUSION_SEED
) -> Iterator[np.ndarray]:
    """Yield the client of each sample after 0, 1, ..., ``steps`` steps: d_0, d_1, ... of van Lier 2018, section 3.1.3.

    In a step every sample, independently, stays or goes to a neighbour of its client; see
    :meth:`TopicGraph.transitions`. Each d_i is the same whatever the number of steps that follow it.

    Args:
        graph: Clients and their relations.
        homes: The client of each sample at first, integers, shape (num_samples,).
        steps: Number of steps.
        stay_weight: How many times likelier it is to stay than to go to a certain neighbour.
        seed: Seed of the moves.

    Raises:
        TypeError: If ``homes`` are no integers.
        ValueError: If an argument is out of range.
    """
    check_instance("graph", graph, TopicGraph)
    check_count("steps", steps, minimum=0)
    check_positive("stay_weight", stay_weight)
    check_count("seed", seed, minimum=0)
    clients = check_homes(homes, graph)
    rng = np.random.default_rng(seed)
    first = np.cumsum(graph.degrees) - graph.degrees
    yield clients
    for _ in range(steps):
        degrees = graph.degrees[clients]
        draw = (rng.random(len(clients)) * (degrees + stay_weight)).astype(np.int64)
        moves = draw < degrees
        clients = clients.copy()
        clients[moves] = graph.neighbours[first[clients[moves]] + draw[moves]]
        yield clients


def entropy_curve(
    graph: TopicGraph, homes: np.ndarray, labels: np.ndarray, steps: int = 100, **options: float
) -> np.ndarray:
    """Return the joint entropy of client and class (eq. (53)), in nats, of d_0, d_1, ..., ``d_steps``.

    Equations are numbered as in ``docs/references.md``.

    Args:
        graph: Clients and their relations.
        homes: The client of each sample in d_0, integers, shape (num_samples,).
        labels: The class of each sample, integers, shape (num_samples,).
        steps: Number of steps.
        **options: ``stay_weight`` and ``seed`` of :func:`diffuse`.

    Returns:
        float64, shape (steps + 1,).

    Raises:
        TypeError: If ``homes`` or ``labels`` are no integers.
        ValueError: If an argument is out of range, or the numbers of homes and labels differ.
    """
    values, classes = np.unique(check_labels(labels), return_inverse=True)
    if len(classes) != len(homes):
        raise ValueError(f"`labels` must be one for each of the {len(homes)} `homes`, got {len(classes)}.")
    shape = graph.num_clients, len(values)

    def entropy(clients: np.ndarray) -> float:
        return label_entropy(np.bincount(clients * shape[1] + classes, minlength=shape[0] * shape[1]).reshape(shape))

    return np.array([entropy(clients) for clients in diffuse(graph, homes, steps, **options)])  # type: ignore[arg-type]


def check_homes(homes: np.ndarray, graph: TopicGraph) -> np.ndarray:
    """Return the clients of samples as int64.

    Raises:
        TypeError: If they are no integers.
        ValueError: If they are no clients of the graph.
    """
    homes = check_labels(homes, "homes")
    if len(homes) and (homes.min() < 0 or homes.max() >= graph.num_clients):
        raise ValueError(
            f"`homes` must be clients from 0 to {graph.num_clients - 1}, got {homes.min()} to {homes.max()}. Get them "
            "from `graph.homes(topics)`."
        )
    return homes.astype(np.int64)
