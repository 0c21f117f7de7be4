"""Clients that are topics of a hierarchy: their relations, and samples that diffuse along them (van Lier 2018)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from fl_lightning.partitioners.base import as_partition, check_labels
from fl_lightning.partitioners.partition import Partition, members
from fl_lightning.partitioners.statistics import label_entropy
from fl_lightning.settings import Count, Natural, Positive, check, check_fields
from fl_lightning.vectors import to_array

# These are the seeds of the thesis.
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
        if edges.size == 0:
            edges = edges.reshape(0, 2)
        if not _are_pairs(edges, len(topics)):
            raise ValueError(
                f"`edges` must be pairs of two different clients from 0 to {len(topics) - 1}, integers of shape "
                f"(num_edges, 2), got {edges.dtype} of shape {edges.shape}."
            )
        edges = np.sort(edges.astype(np.int64), axis=1)
        object.__setattr__(self, "topics", topics)
        object.__setattr__(self, "edges", np.unique(edges, axis=0))

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
        both_directions = np.concatenate([self.edges, self.edges[:, ::-1]])
        clients = both_directions[:, 0]
        neighbours: np.ndarray = both_directions[:, 1]
        return neighbours[np.lexsort((neighbours, clients))]

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
        homes = [_home(topic, client_of) for topic in topics]
        return np.array(homes, dtype=np.int64)

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
        weights = float(stay_weight) * np.eye(self.num_clients)
        first, second = self.edges.T
        weights[first, second] = 1.0
        weights[second, first] = 1.0
        probabilities: np.ndarray = weights / weights.sum(axis=1, keepdims=True)
        return probabilities


def _are_pairs(edges: np.ndarray, num_clients: int) -> bool:
    """Return whether each row is a pair of two different clients."""
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.kind not in "iu":
        return False
    if edges.min(initial=0) < 0 or edges.max(initial=0) >= num_clients:
        return False
    return bool((edges[:, 0] != edges[:, 1]).all())


def _home(topic: str, client_of: Mapping[str, int]) -> int:
    ancestor = topic
    while ancestor not in client_of:
        if "/" not in ancestor:
            raise ValueError(f"Topic {topic!r} has no ancestor among the {len(client_of)} client topics. Leave it out.")
        ancestor = _parent(ancestor)
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
        TypeError: If ``homes`` are not integers.
        ValueError: If an argument is out of range.
    """
    check("`graph`", graph, TopicGraph)
    check("`steps`", steps, Natural)
    check("`stay_weight`", stay_weight, Positive)
    check("`seed`", seed, Natural)
    clients = _check_homes(homes, graph)
    rng = np.random.default_rng(seed)
    # The place of each client's first neighbour in `graph.neighbours`.
    first_neighbour = np.cumsum(graph.degrees) - graph.degrees
    yield clients
    for _ in range(steps):
        degrees = graph.degrees[clients]
        drawn = rng.random(len(clients)) * (degrees + stay_weight)
        drawn = drawn.astype(np.int64)
        # The first numbers are neighbours, the rest means to stay.
        moves = drawn < degrees
        places = first_neighbour[clients[moves]] + drawn[moves]
        clients = clients.copy()
        clients[moves] = graph.neighbours[places]
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
        TypeError: If ``homes`` or ``labels`` are not integers.
        ValueError: If an argument is out of range, or the numbers of homes and labels differ.
    """
    values, classes = np.unique(check_labels(labels), return_inverse=True)
    num_classes = len(values)
    entropies = []
    for clients in diffuse(graph, homes, steps, **options):  # type: ignore[arg-type]
        pairs = clients * num_classes + classes
        counts = np.bincount(pairs, minlength=graph.num_clients * num_classes)
        entropies.append(label_entropy(counts.reshape(graph.num_clients, num_classes)))
    return np.array(entropies)


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
        TypeError: On call, if the homes are not integers.
        ValueError: If an argument is out of range; on call, if a home is not a client or a client ends without samples.

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
        indices = members(self.clients(homes), self.num_clients)
        return as_partition(f"{self}", indices, len(homes))

    def clients(self, homes: np.ndarray) -> np.ndarray:
        """Return the client of each sample, int64, shape (num_samples,)."""
        if self.steps == "iid":
            homes = _check_homes(homes, self.graph)
            rng = np.random.default_rng(self.seed)
            return rng.integers(self.num_clients, size=len(homes))
        assert self.seed is not None
        for clients in diffuse(self.graph, homes, self.steps, stay_weight=self.stay_weight, seed=self.seed):
            last = clients
        return last


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
    related: set[str] = set()
    for pair in pairs:
        related.update(pair)
    counts = dict(counts)
    for level in _levels(counts):
        large = {topic for topic, number in counts.items() if number >= min_samples}
        _merge(counts, level, keep=related & large)
    # From here on a topic can only be merged into an ancestor.
    possible: set[str] = set()
    for topic in counts:
        possible.update(_lineage(topic))
    pairs = [pair for pair in pairs if possible.issuperset(pair)]
    if root is not None and root not in counts:
        raise ValueError(
            f"`root` must be one of the {len(counts)} topics with relations and at least {min_samples} samples, got "
            f"{root!r}. Name a topic of the top level, or None for the largest component."
        )
    _connect(counts, pairs, root)
    topics = sorted(counts)
    return TopicGraph(tuple(topics), _edges_between(topics, pairs))


def _edges_between(topics: Sequence[str], pairs: Iterable[tuple[str, str]]) -> np.ndarray:
    """Return the pairs of which both are among the topics, by their numbers, int64, shape (num_edges, 2)."""
    number_of = {topic: number for number, topic in enumerate(topics)}
    edges = []
    for a, b in pairs:
        if a in number_of and b in number_of:
            edges.append((number_of[a], number_of[b]))
    return np.array(edges, dtype=np.int64).reshape(-1, 2)


def _connect(counts: dict[str, int], pairs: Sequence[tuple[str, str]], root: str | None) -> None:
    """Merge topics upwards until all of them are in one component."""
    while True:
        for level in _levels(counts):
            _merge(counts, level, keep=_component(counts, pairs, root))
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
    edges = _edges_between(names, pairs)
    graph = coo_array((np.ones(len(edges)), edges.T), shape=(len(names), len(names)))
    # Components are numbered in the order of their first topics.
    _, component_of = connected_components(graph, directed=False)
    chosen = np.bincount(component_of).argmax() if root is None else component_of[names.index(root)]
    return {names[number] for number in np.flatnonzero(component_of == chosen)}


def _merge(counts: dict[str, int], level: int, keep: Set[str]) -> None:
    """Merge the topics of a level that are not to be kept into their parents."""
    of_level = [topic for topic in counts if _level(topic) == level]
    for topic in of_level:
        if topic not in keep:
            parent = _parent(topic)
            counts[parent] = counts.get(parent, 0) + counts.pop(topic)


def _levels(counts: Mapping[str, int]) -> range:
    """Return the levels below the top one, deepest first."""
    deepest = max(_level(topic) for topic in counts)
    return range(deepest, 1, -1)


def _level(topic: str) -> int:
    return topic.count("/")


def _parent(topic: str) -> str:
    return topic.rpartition("/")[0]


def _lineage(topic: str) -> list[str]:
    """Return a topic and its ancestors below the root."""
    lineage = []
    while _level(topic) > 0:
        lineage.append(topic)
        topic = _parent(topic)
    return lineage
