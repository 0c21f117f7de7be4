"""Clients that are topics of a hierarchy, and the relations between the topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fl_lightning.arguments import check_positive, check_texts, to_array


@dataclass(frozen=True, eq=False, repr=False)
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
        if not isinstance(self.topics, str):
            check_texts("topics", self.topics)
            object.__setattr__(self, "topics", tuple(self.topics))
        if isinstance(self.topics, str) or len(self.topics) == 0 or len(set(self.topics)) < len(self.topics):
            given = repr(self.topics) if isinstance(self.topics, str) else f"{len(self.topics)} with repetitions"
            raise ValueError(f"`topics` must be one or more different paths, got {given}.")
        edges = to_array("edges", self.edges)
        if edges.size and (edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu"):
            raise ValueError(
                f"`edges` must be pairs of clients, integers of shape (num_edges, 2), got {edges.dtype} of shape "
                f"{edges.shape}."
            )
        edges = edges.astype(np.int64).reshape(-1, 2)
        if ((edges < 0) | (edges >= len(self.topics))).any() or (edges[:, 0] == edges[:, 1]).any():
            raise ValueError(f"`edges` must be pairs of two different clients from 0 to {len(self.topics) - 1}.")
        object.__setattr__(self, "edges", np.unique(np.sort(edges, axis=1), axis=0))

    def __repr__(self) -> str:
        return f"TopicGraph({self.num_clients} topics, {len(self.edges)} edges)"

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


def _home(topic: str, client_of: Mapping[str, int]) -> int:
    ancestor = topic
    while ancestor not in client_of:
        ancestor, slash, _ = ancestor.rpartition("/")
        if not slash:
            raise ValueError(f"Topic {topic!r} has no ancestor among the {len(client_of)} client topics. Leave it out.")
    return client_of[ancestor]
