from __future__ import annotations

import math
from typing import Any

from optuna.distributions import IntDistribution

from fl_lightning.experiment.search import Search, Tried, describe_point, space_of


class Points(Search):
    """A search whose points have no fits."""

    def cells(self, point: dict[str, Any], number: int) -> list[Any]:
        return []


def points(*arguments: Any) -> list[dict[str, Any]]:
    return Points(*arguments).points


def test_a_grid_goes_through_all_combinations_in_order() -> None:
    space = space_of({"S": [2, 5], "lr": [0.1, 1.0]})
    assert points(space) == [{"S": 2, "lr": 0.1}, {"S": 2, "lr": 1.0}, {"S": 5, "lr": 0.1}, {"S": 5, "lr": 1.0}]
    assert points(space, "grid", 1) == [{"S": 2, "lr": 0.1}]
    assert points({}) == [{}]


def test_a_random_search_draws_different_points_of_a_grid() -> None:
    space = space_of({"a": list(range(10)), "b": list(range(10))})
    drawn = points(space, "random", 20, 1)
    assert len({(point["a"], point["b"]) for point in drawn}) == 20
    assert drawn == points(space, "random", 20, 1)
    assert drawn != points(space, "random", 20, 2)
    few = points(space_of({"a": [1, 2]}), "random", 20)
    assert sorted(point["a"] for point in few) == [1, 2]


def test_a_shuffled_grid_has_the_points_of_the_grid_in_another_order() -> None:
    space = space_of({"a": list(range(5)), "b": [{"class": "x"}, [1, 2], None]})
    grid = points(space)
    shuffled = Points(space, shuffled=True).points
    assert len(shuffled) == 15
    assert shuffled != grid
    assert all(point in shuffled for point in grid)


def test_values_that_are_taken_are_in_every_point() -> None:
    space = space_of({"lr": {"min": 0.1, "max": 0.2}})
    for kind in ("random", "tpe"):
        search = Points(space, kind, 2, taken={"mu": 3})
        assert [point["mu"] for point in search.next_points()] == [3, 3]
    assert Points(space_of({}), "random", 5, taken={"mu": 3}).points == [{"mu": 3}]


def test_the_best_point_is_the_first_of_those_with_the_best_score_and_pruned_ones_do_not_count() -> None:
    scores = [(0.2, 0), (None, 0), (0.1, 0), (0.9, 3), (0.2, 0), (0.1, 0), (0.1, 0), (0.05, 1)]
    best = {}
    for mode in ("max", "min"):
        search = Points(space_of({"a": list(range(9))}), mode=mode)
        assert (search.best(), search.note_of_equals()) == (None, "")
        search.tried = [Tried({"a": place}, (), 1, score, "", pruned) for place, (score, pruned) in enumerate(scores)]
        found = search.best()
        assert found is not None
        best[mode] = (found.point["a"], search.note_of_equals())
    told = "configurations have this score; the first is taken."
    assert best == {"max": (0, f" 2 {told}"), "min": (2, f" 3 {told}")}
    search.tried = search.tried[:1]
    assert search.note_of_equals() == ""


def test_points_are_tried_some_at_a_time() -> None:
    search = Points(space_of({"a": list(range(5))}), at_once=2)
    groups = []
    while points := search.next_points():
        groups.append([point["a"] for point in points])
        search.tried += [Tried(point, (), 1, 0.0, "", 0) for point in points]
    assert groups == [[0, 1], [2, 3], [4]]


def test_a_point_as_a_string() -> None:
    point = {"lr": 0.123456, "m": 2, "kind": {"class_path": "a.B", "size": 3}, "on": None}
    assert describe_point(point) == "lr=0.1235, m=2, kind=3, on=None"


def test_ranges() -> None:
    space = space_of({"lr": {"min": 1e-4, "max": 1.0, "log": True}, "mu": {"min": 2, "max": 3}})
    drawn = points(space, "random", 400)
    assert all(1e-4 <= point["lr"] <= 1 and 2 <= point["mu"] <= 3 for point in drawn)
    # half of the logarithms lie below the middle, 1e-2, give or take four standard deviations
    assert abs(sum(point["lr"] < 1e-2 for point in drawn) - 200) < 4 * math.sqrt(100)
    assert {point["S"] for point in points({"S": IntDistribution(1, 3)}, "random", 60)} == {1, 2, 3}
