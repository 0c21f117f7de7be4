"""Searches for hyper-parameters: over a grid, at random, or by Optuna."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from types import ModuleType
from typing import Any, Literal

import numpy as np

from fl_lightning.settings import Count, Natural, check, check_fields, is_number, is_sequence

SearchKind = Literal["grid", "random", "tpe"]
Point = dict[str, Any]


@dataclass(frozen=True)
class Range:
    """A parameter between two bounds.

    Attributes:
        low: Lower bound.
        high: Upper bound.
        log: Whether its logarithm is uniform.
        integer: Whether it is a whole number; both bounds are then possible.
        step: The value is rounded to a multiple of the step; 0 does not round.

    Raises:
        ValueError: If a bound is not a number, ``low`` is not below ``high``, or a bound has no logarithm.
    """

    low: float
    high: float
    log: bool = False
    integer: bool = False
    step: float = 0.0

    def __post_init__(self) -> None:
        if not (is_number(self.low) and is_number(self.high)) or self.low >= self.high or (self.log and self.low <= 0):
            above = " and above 0" * self.log
            raise ValueError(f"A range must have `min` below `max`{above}, got {self.low!r} and {self.high!r}.")

    def draw(self, rng: np.random.Generator) -> float:
        """Return a number in the range."""
        if self.integer:
            return int(rng.integers(int(self.low), int(self.high) + 1))
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = float(rng.uniform(self.low, self.high))
        return round(value / self.step) * self.step if self.step else value

    def distribution(self, kinds: ModuleType) -> Any:
        """Return Optuna's distribution."""
        if self.integer:
            return kinds.IntDistribution(int(self.low), int(self.high))
        step = None if self.log else self.step or None
        return kinds.FloatDistribution(self.low, self.high, log=self.log, step=step)


Space = Mapping[str, Sequence[Any] | Range]
"""A list of values or a range for each parameter."""


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
        ValueError: If an entry is neither a list nor a range.
    """
    space: dict[str, Sequence[Any] | Range] = {}
    for name, entry in check("its content", tune, Mapping).items():
        if is_sequence(entry) and len(entry) > 0:
            space[name] = entry
        elif isinstance(entry, Mapping) and {"min", "max"} <= set(entry) <= {"min", "max", "log"}:
            space[name] = Range(entry["min"], entry["max"], log=bool(entry.get("log", False)))
        else:
            raise ValueError(f"`{name}` must be a list, or a range such as {{min: 0.1, max: 1}}, got {entry!r}.")
    return space


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

    def __post_init__(self) -> None:
        check_fields(self)
        if self.kind != "grid" and self.count is None:
            raise ValueError("`count`, the number of points, is needed by a search other than of a grid, got None.")
        self.tried: list[Tried] = []
        found = self._propose(self.count or 1) if self.kind == "tpe" and self.space else self._draw()
        self.points: list[Point] = [{**self.taken, **point} for point in found]

    def next_points(self) -> list[Point]:
        """Return the points that are tried together after those that were; none after the last."""
        left = self.points[len(self.tried) :][: self.at_once]
        if self.kind == "tpe" and left:
            return [{**self.taken, **point} for point in self._propose(len(left))]
        return left

    @abstractmethod
    def cells(self, point: Point, number: int) -> list[Any]:
        """Return the cells that score a point, by its number in the search."""

    def best(self) -> Tried | None:
        """Return the point with the best score, the first of equals; ``None`` if none has a score."""
        sign = 1 if self.mode == "max" else -1
        known = [each for each in self.tried if each.score is not None and not each.pruned]
        return max(known, key=lambda each: sign * each.score, default=None)  # type: ignore[operator]

    def note_of_equals(self) -> str:
        """Return a sentence, after a space, on how many points share the best score; empty if one has it."""
        best = self.best()
        equal = sum(each.score == best.score and not each.pruned for each in self.tried) if best else 0
        return f" {equal} configurations have this score; the first is taken." if equal > 1 else ""

    def _draw(self) -> list[Point]:
        ranges = [name for name, entry in self.space.items() if isinstance(entry, Range)]
        if self.kind == "grid" and ranges:
            raise ValueError(f"A grid search needs lists of values, got a range for {', '.join(ranges)}.")
        rng = np.random.default_rng(self.seed)
        if ranges:
            return [
                {
                    name: entry.draw(rng) if isinstance(entry, Range) else entry[int(rng.integers(len(entry)))]
                    for name, entry in self.space.items()
                }
                for _ in range(self.count or 1)
            ]
        grid = [dict(zip(self.space, values, strict=True)) for values in product(*self.space.values())]  # type: ignore[arg-type]
        if self.kind == "grid" or self.count is None or len(grid) <= self.count:
            return grid[: self.count]
        return [grid[place] for place in sorted(rng.choice(len(grid), self.count, replace=False).tolist())]

    def _propose(self, count: int) -> list[Point]:
        """Return the next points by the tree-structured Parzen estimator (Bergstra et al. 2011).

        They follow from what was tried alone, so all runs that share a folder try the same points, also after a kill. A
        journal of Optuna's would know in which order trials have ended, and the clock would choose the points.
        """
        optuna = import_optuna("`search: tpe`")
        kinds = optuna.distributions
        with warnings.catch_warnings(action="ignore"):  # a value may be a list or mapping, which storages on disk lack
            known = {
                name: entry.distribution(kinds) if isinstance(entry, Range) else kinds.CategoricalDistribution(entry)
                for name, entry in self.space.items()
            }
        sampler = optuna.samplers.TPESampler(seed=self.seed + len(self.tried), constant_liar=True)
        study = optuna.create_study(direction=f"{self.mode}imize", sampler=sampler)
        states = optuna.trial.TrialState
        for each in self.tried:
            state = states.FAIL if each.score is None else states.PRUNED if each.pruned else states.COMPLETE
            trial = optuna.trial.create_trial(
                state=state,
                value=each.score,
                params={name: each.point[name] for name in self.space},
                distributions=known,
                intermediate_values={each.pruned: each.score} if state == states.PRUNED else None,
            )
            study.add_trial(trial)
        return [study.ask(known).params for _ in range(count)]


def import_optuna(setting: str) -> Any:
    """Return the package Optuna, which is an extra.

    Raises:
        RuntimeError: If it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise RuntimeError(f"{setting} needs the package optuna: pip install 'fl-lightning[search]'.") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def describe_point(point: Mapping[str, Any]) -> str:
    """Return a point as a string; a value that is a mapping is shown by its last entry."""
    shown = {name: list(value.values())[-1] if isinstance(value, Mapping) else value for name, value in point.items()}
    return ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in shown.items()
    )
