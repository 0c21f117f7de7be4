"""Clients that are topics of a hierarchy: their relations, and samples that diffuse along them (van Lier 2018)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from fl_lightning.partitioners.base import as_partition, check_labels
from fl_lightning.partitioners.partition import Partition, members
from fl_lightning.partitioners.statistics import label_entropy
from fl_lightning.settings import Count, Natural, Positive, check, check_fields
from fl_lightning.vectors import to_array

# the seeds of the thesis
_DIFFUSION_SEED = 42
_IID_SEED = 510


@dataclass(frozen=True, eq=False, repr=False)
class TopicGraph:
    """Topics, each of which is a client, and the relations between them.

    Attributes:
        topics: Paths such as ``"Top/Arts/Music"``, client 0 first; no path twice.
        edges: Pairs of related clients, each pair once, int64, shape (num_edges, 2).

    Raises:
        ValueError: If there are no topics, a topic is given twice, or an edge is not a pair of two different clients.

    Example:
        >>> graph = TopicGraph(("Arts", "Arts/Film", "Science"), [(0, 1)])
        >>> len(graph.topics)
        3
    """

    topics: tuple[str, ...]
    edges: np.ndarray

    def __post_init__(self) -> None:
        topics = tuple(check("`topics`", self.topics, Sequence[str]))
        if len(topics) == 0 or len(set(topics)) < len(topics):
            raise ValueError(f"`topics` must be one or more different paths, got {len(topics)} with repetitions.")
        edges = to_array("edges", self.edges)
        edges = edges.reshape(-1, 2) if edges.size == 0 else edges
        if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu" or _outside(edges, len(topics)):
            raise ValueError(
                f"`edges` must be pairs of two different clients from 0 to {len(topics) - 1}, integers of shape "
                f"(num_edges, 2), got {edges.dtype} of shape {edges.shape}."
            )
        object.__setattr__(self, "topics", topics)
        object.__setattr__(self, "edges", np.unique(np.sort(edges.astype(np.int64), axis=1), axis=0))

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
        check("`stay_weight`", stay_weight, Positive)
        matrix = np.diag(np.full(self.num_clients, float(stay_weight)))
        matrix[self.edges[:, 0], self.edges[:, 1]] = matrix[self.edges[:, 1], self.edges[:, 0]] = 1.0
        probabilities: np.ndarray = matrix / matrix.sum(axis=1, keepdims=True)
        return probabilities


def _outside(edges: np.ndarray, num_clients: int) -> bool:
    return bool(((edges < 0) | (edges >= num_clients)).any() or (edges[:, 0] == edges[:, 1]).any())


def _home(topic: str, client_of: Mapping[str, int]) -> int:
    ancestor = topic
    while ancestor not in client_of:
        ancestor, slash, _ = ancestor.rpartition("/")
        if not slash:
            raise ValueError(f"Topic {topic!r} has no ancestor among the {len(client_of)} client topics. Leave it out.")
    return client_of[ancestor]


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
    check("`graph`", graph, TopicGraph)
    check("`steps`", steps, Natural)
    check("`stay_weight`", stay_weight, Positive)
    check("`seed`", seed, Natural)
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
    shape = graph.num_clients, len(values)

    def entropy(clients: np.ndarray) -> float:
        return label_entropy(np.bincount(clients * shape[1] + classes, minlength=shape[0] * shape[1]).reshape(shape))

    return np.array([entropy(clients) for clients in diffuse(graph, homes, steps, **options)])  # type: ignore[arg-type]


def _check_homes(homes: np.ndarray, graph: TopicGraph) -> np.ndarray:
    homes = check_labels(homes, "homes")
    if homes.min(initial=0) < 0 or homes.max(initial=0) >= graph.num_clients:
        raise ValueError(
            f"`homes` must be clients from 0 to {graph.num_clients - 1}, got {homes.min()} to {homes.max()}. Get them "
            "from `graph.homes(topics)`."
        )
    return homes.astype(np.int64)


@dataclass(eq=False)
class TopicGraphPartitioner:
    """Shares samples out by topic, after some steps of diffusion along the topics' relations (van Lier 2018).

    It is called with the home of each sample, its client in d_0 (:meth:`TopicGraph.homes`), as other partitioners are
    called with labels. The number of steps sets the heterogeneity: with 0 each topic keeps its own samples, with many
    the clients have similar mixes of classes. Sizes stay unequal, because topics with many relations keep more samples.

    Args:
        graph: Clients and their relations.
        steps: i of d_i, the number of steps of diffusion; ``"iid"`` for d_iid, which gives each sample to a client
            drawn uniformly.
        stay_weight: How many times likelier a sample stays than it goes to a certain neighbour.
        seed: Seed of the draws; ``None`` takes the thesis's, 42, or 510 for d_iid.

    Raises:
        TypeError: On call, if the homes are no integers.
        ValueError: If an argument is out of range; on call, if a home is no client or a client ends without samples.

    Example:
        >>> import numpy as np
        >>> graph = TopicGraph(("Arts", "Arts/Film", "Science"), [(0, 1), (0, 2)])
        >>> TopicGraphPartitioner(graph, steps=0)(np.array([0, 1, 2, 2])).indices
        (array([0]), array([1]), array([2, 3]))
    """

    graph: TopicGraph
    steps: Natural | Literal["iid"] = 0
    _: KW_ONLY
    stay_weight: Positive = 2.0
    seed: Natural | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.seed is None:
            self.seed = _IID_SEED if self.steps == "iid" else _DIFFUSION_SEED

    @property
    def num_clients(self) -> int:
        """Number of clients, K."""
        return self.graph.num_clients

    def __call__(self, homes: np.ndarray) -> Partition:
        """Return the partition of the samples with these homes, integers, shape (num_samples,)."""
        return as_partition(f"{self}", members(self.clients(homes), self.num_clients), len(homes))

    def clients(self, homes: np.ndarray) -> np.ndarray:
        """Return the client of each sample, int64, shape (num_samples,)."""
        if self.steps == "iid":
            homes = _check_homes(homes, self.graph)
            return np.random.default_rng(self.seed).integers(self.num_clients, size=len(homes))
        assert self.seed is not None
        *_, clients = diffuse(self.graph, homes, self.steps, stay_weight=self.stay_weight, seed=self.seed)
        return clients


# ---- the choice of the topics that become clients ----


def pick_client_topics(
    counts: Mapping[str, int], relations: Iterable[tuple[str, str]], *, min_samples: int = 200, root: str | None = None
) -> TopicGraph:
    """Pick topics that are connected with each other and have enough samples (van Lier 2018, section 3.1.3).

    1. From the deepest level up, a topic is merged into its parent if it has no relation at all or fewer than
       ``min_samples`` samples, those merged into it included.
    2. Then, from the deepest level up and again until none is left, a topic outside the largest connected component of
       the topics still there is merged into its parent. Of components with equally many topics the one with the
       alphabetically first topic is taken.

    Topics of the top level, as ``"Top/Arts"``, are never merged and may have fewer samples. The same holds for a topic
    that step 1 had merged away and that comes back in step 2 with the samples of a subtopic. The original code has both
    exceptions.

    Args:
        counts: Number of samples of each topic itself, without its subtopics; topics are paths such as
            ``"Top/Arts/Music"``.
        relations: Pairs of topics, in either direction and of any kind. Topics without samples may occur.
        min_samples: Fewest samples of a topic that step 1 leaves as it is.
        root: A topic whose component is taken in place of the largest; the original code takes ``"Top/Arts"``.

    Returns:
        The picked topics, in alphabetical order, and the relations between them.

    Raises:
        ValueError: If an argument is out of range, ``root`` is not among the topics of step 1, or topics of the top
            level stay outside the component.
    """
    check("`min_samples`", min_samples, Count)
    pairs = [(a, b) for a, b in relations if a != b]
    related = {topic for pair in pairs for topic in pair}
    counts = dict(counts)
    for level in _levels(counts):
        _merge(counts, level, lambda topic: topic in related and counts[topic] >= min_samples)
    # no topic but these can be among the clients later
    possible = {ancestor for topic in counts for ancestor in _lineage(topic)}
    pairs = [pair for pair in pairs if possible.issuperset(pair)]
    if root is not None and root not in counts:
        raise ValueError(
            f"`root` must be one of the {len(counts)} topics with relations and at least {min_samples} samples, got "
            f"{root!r}. Name a topic of the top level, or None for the largest component."
        )
    _connect(counts, pairs, root)
    topics = tuple(sorted(counts))
    client_of = {topic: client for client, topic in enumerate(topics)}
    edges = [(client_of[a], client_of[b]) for a, b in pairs if a in client_of and b in client_of]
    return TopicGraph(topics, np.array(edges, dtype=np.int64))


def _connect(counts: dict[str, int], pairs: Sequence[tuple[str, str]], root: str | None) -> None:
    """Merge topics upwards until all of them are in one component."""
    while True:
        for level in _levels(counts):
            inside = _component(counts, pairs, root)
            _merge(counts, level, inside.__contains__)
        inside = _component(counts, pairs, root)
        outside = sorted(counts.keys() - inside)
        if not outside:
            return
        if all(_level(topic) == 1 for topic in outside):
            raise ValueError(
                f"{', '.join(outside)} and their subtopics have no relation to the component of {len(inside)} topics "
                f"around {min(inside)}, so that no sample could come there or leave. Leave their samples out, or lower "
                "`min_samples`."
            )


def _component(topics: Iterable[str], pairs: Sequence[tuple[str, str]], root: str | None) -> set[str]:
    """Return the topics that are connected with ``root``, or the largest set of topics connected with each other."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    names = sorted(topics)
    place = {name: number for number, name in enumerate(names)}
    edges = np.array([(place[a], place[b]) for a, b in pairs if a in place and b in place]).reshape(-1, 2).T
    graph = coo_array((np.ones(edges.shape[1]), edges), shape=(len(names), len(names)))
    # components are numbered in the order of their first topics
    _, component_of = connected_components(graph, directed=False)
    chosen = np.bincount(component_of).argmax() if root is None else component_of[place[root]]
    return {name for name, component in zip(names, component_of, strict=True) if component == chosen}


def _merge(counts: dict[str, int], level: int, keep: Callable[[str], bool]) -> None:
    """Merge the topics of a level that are not to be kept into their parents."""
    for topic in [topic for topic in counts if _level(topic) == level and not keep(topic)]:
        parent = topic.rpartition("/")[0]
        counts[parent] = counts.get(parent, 0) + counts.pop(topic)


def _levels(counts: Mapping[str, int]) -> range:
    """Return the levels below the top one, deepest first."""
    return range(max(map(_level, counts)), 1, -1)


def _level(topic: str) -> int:
    return topic.count("/")


def _lineage(topic: str) -> list[str]:
    """Return a topic and its ancestors below the root."""
    steps = topic.split("/")
    return ["/".join(steps[:end]) for end in range(2, len(steps) + 1)]
