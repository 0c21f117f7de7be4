"""The choice of the topics of a hierarchy that become clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from fl_lightning.checks import Count, check, short, to_array
from fl_lightning.partitioners.topics import TopicGraph

Pair = tuple[str, str]


def pick_client_topics(
    counts: Mapping[str, int], relations: Iterable[Pair], *, min_samples: int = 200, root: str | None = None
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
    check("`counts`", counts, Mapping)
    check("`root`", root, str | None)
    numbers = to_array("counts", list(counts.values()))
    if (
        not counts
        or numbers.dtype.kind not in "iu"
        or numbers.min() < 0
        or not all("/" in str(name) for name in counts)
    ):
        raise ValueError(
            "`counts` must hold the number of samples of one or more topics, each a path below a common root, as "
            f"'Top/Arts', got {short(counts)}."
        )
    pairs = list(relations) if isinstance(relations, Iterable) else [relations]
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(topic, str) for topic in pair):
            raise TypeError(f"`relations` must be pairs of topics, got {short(pair)} among them.")
    pairs = [(a, b) for a, b in pairs if a != b]
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


def _connect(counts: dict[str, int], pairs: Sequence[Pair], root: str | None) -> None:
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


def _component(topics: Iterable[str], pairs: Sequence[Pair], root: str | None) -> set[str]:
    """Return the topics that are connected with ``root``, or the largest set of topics connected with each other."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    names = sorted(topics)
    place = {name: number for number, name in enumerate(names)}
    edges = np.array([(place[a], place[b]) for a, b in pairs if a in place and b in place]).reshape(-1, 2).T
    graph = coo_array((np.ones(edges.shape[1]), edges), shape=(len(names), len(names)))
    component_of = connected_components(graph, directed=False)[1]  # numbered in the order of their first topics
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
