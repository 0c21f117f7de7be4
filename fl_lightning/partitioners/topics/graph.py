"""Clients that are topics of a hierarchy, and samples that diffuse along the relations between the topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from fl_lightning.arguments import check_count, check_positive
from fl_lightning.partitioners.labels import check_labels
from fl_lightning.partitioners.partition import Partition
from fl_lightning.partitioners.statistics import label_entropy

_DIFFUSION_SEED = 42
_IID_SEED = 510


@dataclass(frozen=True, eq=False)
class TopicGraph:
    """Topics, each of which is a client, and the relations between them.

    Attributes:
        topics: Paths such as ``"Top/Arts/Music"``, client 0 first; no path twice.
        edges: Pairs of related clients, each pair once, int64, shape (num_edges, 2).

    Raises:
        ValueError: If there are no topics, a topic is given twice, or an edge is no pair of two different clients.
    """

    topics: tuple[str, ...]
    edges: np.ndarray

    def __post_init__(self) -> None:
        if isinstance(self.topics, str) or len(self.topics) == 0 or len(set(self.topics)) < len(self.topics):
            given = repr(self.topics) if isinstance(self.topics, str) else f"{len(self.topics)} with repetitions"
            raise ValueError(f"`topics` must be one or more different paths, got {given}.")
        edges = np.asarray(self.edges)
        if edges.size and (edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu"):
            raise ValueError(
                f"`edges` must be pairs of clients, integers of shape (num_edges, 2), got {edges.dtype} of shape "
                f"{edges.shape}."
            )
        edges = edges.astype(np.int64).reshape(-1, 2)
        if ((edges < 0) | (edges >= len(self.topics))).any() or (edges[:, 0] == edges[:, 1]).any():
            raise ValueError(f"`edges` must be pairs of two different clients from 0 to {len(self.topics) - 1}.")
        object.__setattr__(self, "edges", np.unique(np.sort(edges, axis=1), axis=0))

    @property
    def num_clients(self) -> int:
        """Number of clients, K."""
        return len(self.topics)

    @cached_property
    def degrees(self) -> np.ndarray:
        """Neighbours of each client, int64, shape (num_clients,)."""
        return np.bincount(self.edges.ravel(), minlength=self.num_clients)

    @cached_property
    def neighbours(self) -> np.ndarray:
        """The neighbours of client 0, ascending, then those of client 1, and so on; int64, shape (2 num_edges,)."""
        both = np.concatenate([self.edges, self.edges[:, ::-1]])
        neighbours: np.ndarray = both[np.lexsort((both[:, 1], both[:, 0])), 1]
        return neighbours

    def homes(self, topics: Iterable[str]) -> np.ndarray:
        """Return the client of each topic: its deepest ancestor, or itself, that is a client.

        Args:
            topics: Paths, in any number.

        Returns:
            int64, one client for each topic.

        Raises:
            ValueError: If a topic has no such ancestor.
        """
        client_of = {topic: client for client, topic in enumerate(self.topics)}
        return np.fromiter((_home(topic, client_of) for topic in topics), dtype=np.int64)

    def transitions(self, stay_weight: float = 2.0) -> np.ndarray:
        """Return the probability that one step of diffusion takes a sample from one client (row) to another (column).

        A sample stays with probability w / (degree + w) and goes to each neighbour with 1 / (degree + w), so that in
        the long run a client holds a share of the samples that is proportional to its degree + w.

        Args:
            stay_weight: w, how many times likelier it is to stay than to go to a certain neighbour.

        Returns:
            float64, shape (num_clients, num_clients); rows sum to 1.
        """
        check_positive("stay_weight", stay_weight)
        matrix = np.diag(np.full(self.num_clients, float(stay_weight)))
        matrix[self.edges[:, 0], self.edges[:, 1]] = matrix[self.edges[:, 1], self.edges[:, 0]] = 1.0
        probabilities: np.ndarray = matrix / matrix.sum(axis=1, keepdims=True)
        return probabilities


def diffuse(
    graph: TopicGraph, homes: np.ndarray, steps: int, *, stay_weight: float = 2.0, seed: int = _DIFFUSION_SEED
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
    check_count("steps", steps, minimum=0)
    check_positive("stay_weight", stay_weight)
    check_count("seed", seed, minimum=0)
    clients = _check_homes(homes, graph)
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


class TopicGraphPartitioner:
    """Shares samples out by topic, after some steps of diffusion along the topics' relations (van Lier 2018).

    Called with the home of each sample, its client in d_0 (:meth:`TopicGraph.homes`), as a partitioner is with its
    class. The number of steps sets the heterogeneity: none leaves each topic with its own samples, many make the
    clients' mixes of classes alike. Sizes stay unequal, for related topics attract.

    Args:
        graph: Clients and their relations.
        steps: i of d_i, the number of steps of diffusion; ``"iid"`` for d_iid, which gives each sample to a client
            drawn uniformly.
        stay_weight: How many times likelier a sample stays than it goes to a certain neighbour.
        seed: Seed of the draws; ``None`` takes the thesis's, 42, or 510 for d_iid.

    Raises:
        TypeError: On call, if the homes are no integers.
        ValueError: If an argument is out of range; on call, if a home is no client or a client ends without samples.
    """

    def __init__(
        self,
        graph: TopicGraph,
        steps: int | Literal["iid"] = 0,
        *,
        stay_weight: float = 2.0,
        seed: int | None = None,
    ) -> None:
        if steps != "iid":
            check_count("steps", steps, minimum=0, hint="'iid' gives each sample to a random client.")
        check_positive("stay_weight", stay_weight)
        self.seed = (_IID_SEED if steps == "iid" else _DIFFUSION_SEED) if seed is None else seed
        check_count("seed", self.seed, minimum=0)
        self.graph = graph
        self.steps = steps
        self.stay_weight = stay_weight

    @property
    def num_clients(self) -> int:
        """Number of clients, K."""
        return self.graph.num_clients

    def __call__(self, homes: np.ndarray) -> Partition:
        """Return the partition of the samples with these homes, integers, shape (num_samples,)."""
        clients = self.clients(homes)
        sizes = np.bincount(clients, minlength=self.num_clients)
        if sizes.min() == 0:
            empty = int(sizes.argmin())
            raise ValueError(
                f"Client {empty} ({self.graph.topics[empty]}) has no samples with `steps` {self.steps!r} and `seed` "
                f"{self.seed}. Use more samples, fewer clients (a larger `min_samples`) or another seed."
            )
        return Partition(tuple(np.split(np.argsort(clients, kind="stable"), np.cumsum(sizes)[:-1])))

    def clients(self, homes: np.ndarray) -> np.ndarray:
        """Return the client of each sample, int64, shape (num_samples,)."""
        if self.steps == "iid":
            homes = _check_homes(homes, self.graph)
            return np.random.default_rng(self.seed).integers(self.num_clients, size=len(homes))
        *_, clients = diffuse(self.graph, homes, self.steps, stay_weight=self.stay_weight, seed=self.seed)
        return clients


def _home(topic: str, client_of: Mapping[str, int]) -> int:
    ancestor = topic
    while ancestor not in client_of:
        ancestor, slash, _ = ancestor.rpartition("/")
        if not slash:
            raise ValueError(f"Topic {topic!r} has no ancestor among the {len(client_of)} client topics. Leave it out.")
    return client_of[ancestor]


def _check_homes(homes: np.ndarray, graph: TopicGraph) -> np.ndarray:
    homes = check_labels(homes)
    if len(homes) and (homes.min() < 0 or homes.max() >= graph.num_clients):
        raise ValueError(
            f"`homes` must be clients from 0 to {graph.num_clients - 1}, got {homes.min()} to {homes.max()}. Get them "
            "from `graph.homes(topics)`."
        )
    return homes.astype(np.int64)
