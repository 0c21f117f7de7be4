from __future__ import annotations

import math
from typing import Any

from fl_lightning.experiment.search import Range, Search, space_of


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
    assert points(space_of({"a": [1, 2]}), "random", 20) == [{"a": 1}, {"a": 2}]


def test_ranges() -> None:
    space = space_of({"lr": {"min": 1e-4, "max": 1.0, "log": True}, "mu": {"min": 2, "max": 3}})
    drawn = points(space, "random", 400)
    assert all(1e-4 <= point["lr"] <= 1 and 2 <= point["mu"] <= 3 for point in drawn)
    # half of the logarithms lie below the middle, 1e-2, give or take four standard deviations
    assert abs(sum(point["lr"] < 1e-2 for point in drawn) - 200) < 4 * math.sqrt(100)
    integers = points({"S": Range(1, 3, integer=True)}, "random", 60)
    assert {point["S"] for point in integers} == {1, 2, 3}
    steps = points({"q": Range(0, 1, step=0.25)}, "random", 60)
    assert {point["q"] for point in steps} == {0, 0.25, 0.5, 0.75, 1}
