"""Searches for hyper-parameters: over a grid, at random, or by the scores so far.

Optuna draws the points. Of a search over ``{"lr": [0.01, 0.1], "mu": {"min": 0.001, "max": 1, "log": true}}`` they are
such as ``{"lr": 0.1, "mu": 0.02}``. Each point is scored by one or more fits, which run elsewhere.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from fl_lightning.settings import Count, Finite, Natural, check, check_fields, is_sequence

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import CategoricalDistribution
    from optuna.samplers import BaseSampler

SearchKind = Literal["grid", "random", "tpe"]
Point = dict[str, Any]
Space = dict[str, Any]
"""For each parameter its distribution of Optuna, which is categorical for a list of values."""


@dataclass(frozen=True, eq=False)
class Tried:
    """A point that was tried.

    Attributes:
        point: The point.
        fits: Ids of its fits.
        finite: Number of fits with a finite score.
        score: The mean of their scores; ``None`` if one has none.
        error: Why the point cannot be chosen; empty if it can.
        pruned: Round after which the first of its fits was pruned; 0 if none was.
    """

    point: Point
    fits: tuple[str, ...]
    finite: int
    score: float | None
    error: str
    pruned: int


def space_of(tune: Mapping[str, Any]) -> Space:
    """Return the space that the ``tune`` of a method describes.

    Args:
        tune: For each name a list of values, or a range such as ``{"min": 0.001, "max": 1, "log": true}``.

    Raises:
        TypeError: If it is no mapping.
        ValueError: If an entry is neither a list nor a range, or the bounds of a range are wrong.
    """
    space: Space = {}
    for name, entry in check("its content", tune, Mapping).items():
        if is_sequence(entry) and len(entry) > 0:
            space[name] = choice_of(entry)
        elif isinstance(entry, Mapping) and {"min", "max"} <= set(entry) <= {"min", "max", "log"}:
            from optuna.distributions import FloatDistribution

            low = check(f"`{name}.min`", entry["min"], Finite)
            high = check(f"`{name}.max`", entry["max"], Finite)
            space[name] = FloatDistribution(low, high, log=bool(entry.get("log", False)))
        else:
            raise ValueError(f"`{name}` must be a list, or a range such as {{min: 0.1, max: 1}}, got {entry!r}.")
    return space


def choice_of(values: Sequence[Any]) -> CategoricalDistribution:
    """Return the distribution of a parameter that has one of some values."""
    from optuna.distributions import CategoricalDistribution

    # Optuna warns of values that are lists or mappings, because it could not store them on a disk.
    with warnings.catch_warnings(action="ignore"):
        return CategoricalDistribution(values)


@dataclass(eq=False)
class Search(ABC):
    """A search for the point with the best score.

    Args:
        space: The parameters.
        kind: ``"grid"`` tries all combinations; the values of the last parameter change fastest. ``"random"`` draws
            points; without ranges it draws no point twice, and takes all points if there are no more. ``"tpe"`` lets
            Optuna propose points by the scores so far.
        count: Number of points. A grid search takes the first ones, or all if ``None``.
        seed: Seed of the draws.
        mode: Whether larger (``"max"``) or smaller (``"min"``) scores are better.
        at_once: Number of points that are tried together; all if ``None``.
        taken: Further values of every point.
        shuffled: Whether a grid is tried in random order.

    Attributes:
        points: The points. Those of ``"tpe"`` are as if none had a score.
        tried: What came out of the points so far.

    Raises:
        ValueError: If a grid search has a range, or another search no ``count``.
    """

    space: Space
    kind: SearchKind = "grid"
    count: Count | None = None
    seed: Natural = 0
    mode: Literal["max", "min"] = "max"
    at_once: Count | None = None
    taken: Point = field(default_factory=dict)
    shuffled: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.kind != "grid" and self.count is None:
            raise ValueError("`count`, the number of points, is needed by a search other than of a grid, got None.")
        self.tried: list[Tried] = []
        self.points: list[Point] = self._first_points()

    def next_points(self) -> list[Point]:
        """Return the points that are tried together after those that were; none after the last."""
        left = self.points[len(self.tried) :][: self.at_once]
        if self.kind == "tpe" and self.space and left:
            return self._ask(self._tpe(), len(left))
        return left

    @abstractmethod
    def cells(self, point: Point, number: int) -> list[Any]:
        """Return the cells that score a point, by its number in the search."""

    def best(self) -> Tried | None:
        """Return the point with the best score, the first of equals; ``None`` if none has a score."""
        best = None
        best_score = -math.inf
        for each in self.tried:
            if each.score is None or each.pruned:
                continue
            score = each.score if self.mode == "max" else -each.score
            if score > best_score:
                best = each
                best_score = score
        return best

    def note_of_equals(self) -> str:
        """Return a sentence, after a space, on how many points share the best score; empty if one has it."""
        best = self.best()
        if best is None:
            return ""
        equal = [each for each in self.tried if each.score == best.score and not each.pruned]
        if len(equal) == 1:
            return ""
        return f" {len(equal)} configurations have this score; the first is taken."

    def _first_points(self) -> list[Point]:
        """Return all points, as if none of them had a score."""
        if not self.space:
            return [dict(self.taken)]
        from optuna.distributions import CategoricalDistribution
        from optuna.samplers import GridSampler, RandomSampler

        if self.kind == "tpe":
            return self._ask(self._tpe(), self.count or 1)
        lists = {
            name: entry.choices for name, entry in self.space.items() if isinstance(entry, CategoricalDistribution)
        }
        ranges = [name for name in self.space if name not in lists]
        if self.kind == "grid" and ranges:
            raise ValueError(f"A grid search needs lists of values, got a range for {', '.join(ranges)}.")
        if ranges:
            return self._ask(RandomSampler(self.seed), self.count or 1)
        # Optuna's sampler of a grid makes the same product, and tries it in random order. In order the table of points
        # is easier to read, and of equal scores the one that the user named first is chosen.
        grid = [{**self.taken, **dict(zip(lists, values, strict=True))} for values in product(*lists.values())]
        count = min(self.count or len(grid), len(grid))
        if self.kind == "grid" and not self.shuffled:
            return grid[:count]
        with warnings.catch_warnings(action="ignore"):
            sampler = GridSampler(lists, self.seed)
        return self._ask(sampler, count)

    def _tpe(self) -> BaseSampler:
        """Return the tree-structured Parzen estimator (Bergstra et al. 2011), which proposes points by scores.

        Its seed follows from what was tried alone, so all runs that share a folder try the same points, also after a
        kill. A journal of Optuna's would know in which order trials have ended, and the clock would choose the points.
        """
        from optuna.samplers import TPESampler

        return TPESampler(seed=self.seed + len(self.tried), constant_liar=True)

    def _ask(self, sampler: BaseSampler, count: int) -> list[Point]:
        """Return the points that a sampler proposes after those that were tried."""
        from optuna.trial import TrialState, create_trial

        study = new_study(self.mode, sampler=sampler)
        for each in self.tried:
            state = TrialState.COMPLETE
            reports = {}
            if each.score is None:
                state = TrialState.FAIL
            elif each.pruned:
                state = TrialState.PRUNED
                reports = {each.pruned: each.score}
            params = {name: each.point[name] for name in self.space}
            study.add_trial(
                create_trial(
                    state=state,
                    value=each.score,
                    params=params,
                    distributions=self.space,
                    intermediate_values=reports,
                )
            )
        return [{**self.taken, **study.ask(self.space).params} for _ in range(count)]


def new_study(mode: Literal["max", "min"], **settings: Any) -> Study:
    """Return a study of Optuna's that is in this process alone.

    Args:
        mode: Whether larger (``"max"``) or smaller (``"min"``) scores are better.
        settings: Further arguments of ``optuna.create_study``.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize" if mode == "max" else "minimize", **settings)


def describe_point(point: Mapping[str, Any]) -> str:
    """Return a point as a string; a value that is a mapping is shown by its last entry."""
    parts = []
    for name, value in point.items():
        shown = list(value.values())[-1] if isinstance(value, Mapping) else value
        parts.append(f"{name}={shown:.4g}" if isinstance(shown, float) else f"{name}={shown}")
    return ", ".join(parts)
