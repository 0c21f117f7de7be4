from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fl_lightning.partitioners import pick_client_topics


def picked(counts: dict[str, int], relations: Iterable[tuple[str, str]], **options: object) -> list[str]:
    return list(pick_client_topics(counts, relations, **options).topics)  # type: ignore[arg-type]


def test_small_topics_are_merged_upwards_level_by_level() -> None:
    counts = {"Top/A": 1, "Top/A/X": 4, "Top/A/X/P": 5, "Top/A/X/P/Q": 5, "Top/A/X/R": 3, "Top/A/Y": 9}
    chain = [("Top/A", "Top/A/X"), ("Top/A/X", "Top/A/X/P"), ("Top/A/X/P", "Top/A/X/P/Q"), ("Top/A/X", "Top/A/X/R")]
    chain.append(("Top/A", "Top/A/Y"))

    # Q (5) goes into P, which then has 10; R (3) goes into X: 7, not enough, so X goes into A; that cuts P off, which
    # so becomes X
    graph = pick_client_topics(counts, chain, min_samples=8)
    assert list(graph.topics) == ["Top/A", "Top/A/X", "Top/A/Y"]
    assert graph.edges.tolist() == [[0, 1], [0, 2]]
    # with 7 X stays, and so does P
    assert picked(counts, chain, min_samples=7) == ["Top/A", "Top/A/X", "Top/A/X/P", "Top/A/Y"]
    assert picked(counts, chain, min_samples=3) == sorted(counts)


def test_a_parent_without_samples_of_its_own_takes_them_in() -> None:
    counts = {"Top/A": 1, "Top/A/X/P": 150, "Top/A/X/Q": 150}

    assert picked(counts, [("Top/A", "Top/A/X"), ("Top/A/X/P", "Top/A")]) == ["Top/A", "Top/A/X"]


def test_topics_outside_the_largest_component_are_merged_until_all_are_inside() -> None:
    counts = {"Top/A": 9, "Top/A/X": 9, "Top/A/Y": 9, "Top/B": 9, "Top/B/Z": 9, "Top/B/Z/U": 9, "Top/B/Z/V": 9}
    # U and V are related with each other alone; Z with B; B with X
    relations = [("Top/A", "Top/A/X"), ("Top/A", "Top/A/Y"), ("Top/B/Z/U", "Top/B/Z/V"), ("Top/B/Z", "Top/B")]

    inside = picked(counts, [*relations, ("Top/B", "Top/A/X")], min_samples=5)
    assert inside == ["Top/A", "Top/A/X", "Top/A/Y", "Top/B", "Top/B/Z"]


def test_a_topic_that_comes_back_takes_its_own_samples_along() -> None:
    counts = {"Top/A": 1, "Top/A/X": 6, "Top/A/X/P": 2, "Top/A/X/P/Q": 8}
    relations = [("Top/A", "Top/A/X"), ("Top/A/X", "Top/A/X/P"), ("Top/A/X/P/Q", "Top/Elsewhere")]

    # P (2) goes into X, which then has 8; Q is outside and becomes P, now with both of its pages and those of Q
    graph = pick_client_topics(counts, relations, min_samples=8)
    homes = np.repeat(graph.homes(counts), list(counts.values()))
    assert graph.topics == ("Top/A", "Top/A/X", "Top/A/X/P")
    assert np.bincount(homes).tolist() == [1, 6, 10]


def test_of_equal_components_the_one_with_the_first_topic_is_taken_unless_a_root_is_named() -> None:
    counts = {"Top/A": 9, "Top/A/X": 9, "Top/A/X/P": 9, "Top/A/X/Q": 9}
    relations = [("Top/A", "Top/A/X"), ("Top/A/X/P", "Top/A/X/Q")]

    assert picked(counts, relations, min_samples=5) == ["Top/A", "Top/A/X"]
    assert picked(counts, relations, min_samples=5, root="Top/A/X") == ["Top/A", "Top/A/X"]


def test_neither_the_order_nor_the_direction_of_relations_counts() -> None:
    counts = {"Top/A": 9, "Top/A/X": 9, "Top/B": 9}
    for relations in (
        [("Top/A", "Top/A/X"), ("Top/B", "Top/A/X")],
        [("Top/A/X", "Top/B"), ("Top/A/X", "Top/A"), ("Top/A", "Top/A/X"), ("Top/A", "Top/Gone")],
    ):
        graph = pick_client_topics(counts, relations, min_samples=5)
        assert graph.topics == ("Top/A", "Top/A/X", "Top/B")
        assert graph.edges.tolist() == [[0, 1], [1, 2]]
