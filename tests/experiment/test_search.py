from __future__ import annotations

import math
from typing import Any

import pytest
from optuna.distributions import IntDistribution

from fl_lightning.experiment.search import Search, space_of


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


def test_ranges() -> None:
    space = space_of({"lr": {"min": 1e-4, "max": 1.0, "log": True}, "mu": {"min": 2, "max": 3}})
    drawn = points(space, "random", 400)
    assert all(1e-4 <= point["lr"] <= 1 and 2 <= point["mu"] <= 3 for point in drawn)
    # half of the logarithms lie below the middle, 1e-2, give or take four standard deviations
    assert abs(sum(point["lr"] < 1e-2 for point in drawn) - 200) < 4 * math.sqrt(100)
    assert {point["S"] for point in points({"S": IntDistribution(1, 3)}, "random", 60)} == {1, 2, 3}


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ({"min": "a", "max": 1}, "`lr.min`"),
        ({"min": 2, "max": 1}, "low <= high"),
        ({"min": 0, "max": 1, "log": True}, "low > 0"),
        ({"min": 0, "max": float("nan")}, "`lr.max`"),
        ({"min": 0}, "`lr`"),
        ([], "`lr`"),
    ],
)
def test_wrong_ranges_are_named(entry: Any, what: str) -> None:
    with pytest.raises((TypeError, ValueError), match=what):
        space_of({"lr": entry})
