from __future__ import annotations

import numpy as np
import pytest

from fl_lightning.partitioners import TopicGraph, TopicGraphPartitioner, diffuse, entropy_curve

PAIR = TopicGraph(("Top/A", "Top/B"), np.array([[0, 1]]))
PATH = TopicGraph(("Top/A", "Top/B", "Top/C"), np.array([[2, 1], [0, 1]]))


def after(graph: TopicGraph, steps: int, start: list[float]) -> list[float]:
    return (np.array(start) @ np.linalg.matrix_power(graph.transitions(), steps)).tolist()


# oracle O15: two linked clients, and a path of three
def test_probabilities_of_one_step_and_of_many() -> None:
    np.testing.assert_allclose(PAIR.transitions(), [[2 / 3, 1 / 3], [1 / 3, 2 / 3]], rtol=1e-15)
    np.testing.assert_allclose(
        PATH.transitions(), [[2 / 3, 1 / 3, 0], [1 / 4, 1 / 2, 1 / 4], [0, 1 / 3, 2 / 3]], rtol=1e-15
    )
    assert after(PAIR, 5, [1, 0])[0] == pytest.approx(0.502057613, abs=5e-10)
    assert after(PATH, 10, [1, 0, 0]) == pytest.approx([0.308670768, 0.399999993, 0.291329238], abs=5e-10)
    assert after(PATH, 1000, [0, 0, 1]) == pytest.approx([0.3, 0.4, 0.3], abs=1e-12)


@pytest.mark.parametrize(("graph", "steps", "stay_weight"), [(PAIR, 5, 2.0), (PATH, 1, 0.5), (PATH, 10, 2.0)])
def test_samples_move_with_these_probabilities(graph: TopicGraph, steps: int, stay_weight: float) -> None:
    size = 200_000
    *_, clients = diffuse(graph, np.zeros(size, dtype=np.int64), steps, stay_weight=stay_weight)

    expected = np.linalg.matrix_power(graph.transitions(stay_weight), steps)[0]
    # six standard deviations of a share of 200,000 samples
    np.testing.assert_allclose(np.bincount(clients, minlength=graph.num_clients) / size, expected, atol=6 * 0.00112)


def test_the_first_distribution_is_the_homes_and_later_ones_do_not_depend_on_the_number_of_steps() -> None:
    homes = np.arange(300) % 3
    few, many = list(diffuse(PATH, homes, 2)), list(diffuse(PATH, homes, 7))

    assert few[0].tolist() == homes.tolist()
    assert (len(few), len(many)) == (3, 8)
    assert all(np.array_equal(a, b) for a, b in zip(few, many, strict=False))
    assert not np.array_equal(few[1], few[2])
    assert homes.tolist() == (np.arange(300) % 3).tolist()


def test_the_home_of_a_topic_is_its_deepest_ancestor_that_is_a_client() -> None:
    graph = TopicGraph(("Top/A", "Top/A/B", "Top/A/B/C/D"), np.array([[0, 1], [1, 2]]))
    topics = ["Top/A", "Top/A/X/Y", "Top/A/B", "Top/A/B/C", "Top/A/B/C/D", "Top/A/B/C/D/E", "Top/A/BB"]

    assert graph.homes(topics).tolist() == [0, 0, 1, 1, 2, 2, 0]


def test_a_partition_is_a_distribution_of_the_sequence() -> None:
    homes = np.arange(90) % 3
    distributions = list(diffuse(PATH, homes, 5))
    for steps in (0, 3, 5):
        partition = TopicGraphPartitioner(PATH, steps)(homes)
        assert [indices.tolist() for indices in partition.indices] == [
            np.flatnonzero(distributions[steps] == client).tolist() for client in range(3)
        ]


def test_iid_gives_every_client_a_like_share_whatever_the_homes() -> None:
    partition = TopicGraphPartitioner(PATH, "iid")(np.zeros(30_000, dtype=np.int64))

    # six standard deviations, sqrt(30000 * 1/3 * 2/3) = 81.6 each
    assert np.abs(partition.sizes - 10_000).max() < 490


def test_seeds() -> None:
    homes = np.arange(60) % 3
    assert TopicGraphPartitioner(PATH, "iid")(homes) == TopicGraphPartitioner(PATH, "iid", seed=510)(homes)
    assert TopicGraphPartitioner(PATH, 3)(homes) != TopicGraphPartitioner(PATH, 3, seed=1)(homes)
    # the same from version to version
    assert TopicGraphPartitioner(PATH, 3)(homes).fingerprint().startswith("ce5f0086")


def test_entropy_by_hand() -> None:
    # all samples of a client are of one class: d_0 has the entropy of the clients' shares, here ln 2
    curve = entropy_curve(PAIR, np.array([0, 1] * 50_000), np.array([5, 9] * 50_000), steps=30)

    assert curve.shape == (31,)
    assert curve[0] == pytest.approx(0.693147181, abs=5e-10)
    # after one step the four pairs of client and class have shares 1/3, 1/3, 1/6, 1/6: ln 6 - 2/3 ln 2 = 1.329661349
    assert curve[1] == pytest.approx(1.329661349, abs=2e-3)
    # in the end client and class are independent: ln 4
    assert curve[30] == pytest.approx(1.386294361, abs=1e-3)
    # where nobody stays, the clients exchange their samples
    homes = np.repeat([0, 1], [10, 20])
    moved = entropy_curve(PAIR, homes, homes, steps=1, stay_weight=1e-12)
    assert moved[1] == pytest.approx(moved[0])
    partition = TopicGraphPartitioner(PAIR, 1, stay_weight=1e-12)(np.array([0, 1, 1]))
    assert [indices.tolist() for indices in partition.indices] == [[1, 2], [0]]
