"""Spaces of hyper-parameters, and the points that a search tries: a grid, random ones, or Optuna's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

SearchKind = Literal["grid", "random", "tpe"]
Point = dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """A parameter with a list of values."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Return one of the values; all are equally likely."""
        return self.values[int(rng.integers(len(self.values)))]

    def distribution(self) -> Any:
        """Return Optuna's distribution, over the places of the values."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(range(len(self.values)))

    def to_optuna(self, value: Any) -> int:
        """Return the place of a value."""
        return self.values.index(value)

    def of_optuna(self, place: int) -> Any:
        """Return the value of a place."""
        return self.values[place]


@dataclass(frozen=True)
class Range:
    """A parameter between two bounds.

    Attributes:
        low: Lower bound.
        high: Upper bound.
        log: Whether its logarithm is uniform.
        integer: Whether it is a whole number; both bounds are then possible.
        step: The value is rounded to a multiple of the step; 0 does not round.
    """

    low: float
    high: float
    log: bool = False
    integer: bool = False
    step: float = 0.0

    def draw(self, rng: np.random.Generator) -> float:
        """Return a number in the range."""
        if self.integer:
            return int(rng.integers(int(self.low), int(self.high) + 1))
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = float(rng.uniform(self.low, self.high))
        return round(value / self.step) * self.step if self.step else value

    def distribution(self) -> Any:
        """Return Optuna's distribution."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.integer:
            return IntDistribution(int(self.low), int(self.high))
        return FloatDistribution(self.low, self.high, log=self.log, step=None if self.log else self.step or None)

    def to_optuna(self, value: Any) -> Any:
        """Return a value as it is."""
        return value

    of_optuna = to_optuna


Space = Mapping[str, Choice | Range]


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


def space_of(tune: Mapping[str, Any]) -> dict[str, Choice | Range]:
    """Return the space that the ``tune`` of a method describes.

    Args:
        tune: For each name a list of values, or a range such as ``{"min": 0.001, "max": 1, "log": true}``.

    Raises:
        ValueError: If an entry is neither a list nor a range.
    """
    space: dict[str, Choice | Range] = {}
    for name, entry in tune.items():
        if isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) > 0:
            space[name] = Choice(tuple(entry))
        elif isinstance(entry, Mapping) and {"min", "max"} <= set(entry) <= {"min", "max", "log"}:
            space[name] = make_range(name, entry["min"], entry["max"], log=bool(entry.get("log", False)))
        else:
            raise ValueError(
                f"`tune.{name}` must be a list of values, or a range such as {{min: 0.001, max: 1, log: true}}, got "
                f"{entry!r}."
            )
    return space


def make_range(name: str, low: Any, high: Any, *, log: bool = False, integer: bool = False, step: float = 0.0) -> Range:
    """Check the bounds of a range and return it.

    Raises:
        ValueError: If a bound is not a number, ``low`` is not below ``high``, or a bound has no logarithm.
    """
    if not all(isinstance(bound, (int, float)) and not isinstance(bound, bool) for bound in (low, high)) or low >= high:
        raise ValueError(f"`{name}` must have numbers with `min` below `max`, got {low!r} and {high!r}.")
    if log and low <= 0:
        raise ValueError(f"`{name}` has a logarithmic scale, so `min` must be greater than 0, got {low!r}.")
    return Range(low, high, log, integer, step)


def points(space: Space, search: SearchKind = "grid", count: int | None = None, seed: int = 0) -> list[Point]:
    """Return the points that a search tries.

    Args:
        space: The parameters.
        search: ``"grid"`` tries all combinations; the values of the last parameter change fastest. ``"random"`` draws
            ``count`` points. Without ranges it draws no point twice, and takes all points if there are no more.
            ``"tpe"`` gives those that Optuna would propose if none had a score; see :func:`propose`.
        count: Number of points. A grid search takes the first ones, or all if ``None``; others need it.
        seed: Seed of the draws.

    Raises:
        ValueError: If a grid search has a range.
    """
    ranges = [name for name, entry in space.items() if isinstance(entry, Range)]
    if search == "grid" and ranges:
        raise ValueError(f"A grid search needs lists of values, got a range for {', '.join(ranges)}. Search at random.")
    if search == "tpe" and space:
        return propose(space, (), count or 1, seed)
    rng = np.random.default_rng(seed)
    if ranges:
        return [{name: entry.draw(rng) for name, entry in space.items()} for _ in range(count or 1)]
    values = [entry.values for entry in space.values() if isinstance(entry, Choice)]
    grid = [dict(zip(space, combination, strict=True)) for combination in product(*values)]
    if search == "grid" or count is None or len(grid) <= count:
        return grid[:count]
    return [grid[place] for place in sorted(rng.choice(len(grid), count, replace=False).tolist())]


def propose(space: Space, tried: Sequence[Tried], count: int, seed: int, mode: str = "max") -> list[Point]:
    """Return the next points of a search by the tree-structured Parzen estimator (Bergstra et al. 2011).

    They follow from the arguments alone, so all runs that share a folder try the same points, also after a kill. A
    journal of Optuna's would know in which order trials have ended, and the clock would choose the points.

    Args:
        space: The parameters.
        tried: The points so far.
        count: Number of points.
        seed: Seed of the search.
        mode: Whether larger (``"max"``) or smaller (``"min"``) scores are better.
    """
    if not count:
        return []
    optuna = import_optuna("`search: tpe`")
    states, known = optuna.trial.TrialState, {name: entry.distribution() for name, entry in space.items()}
    sampler = optuna.samplers.TPESampler(seed=seed + len(tried), constant_liar=True)
    study = optuna.create_study(direction=f"{mode}imize", sampler=sampler)
    for each in tried:
        state = states.FAIL if each.score is None else states.PRUNED if each.pruned else states.COMPLETE
        study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=each.score,
                params={name: entry.to_optuna(each.point[name]) for name, entry in space.items()},
                distributions=known,
                intermediate_values={each.pruned: each.score} if state == states.PRUNED else None,
            )
        )
    trials = [study.ask(known) for _ in range(count)]
    return [{name: entry.of_optuna(trial.params[name]) for name, entry in space.items()} for trial in trials]


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


def note_of_equals(scores: Sequence[float], best: float) -> str:
    """Return a sentence, after a space, on how many configurations share the best score; empty if one has it."""
    equal = sum(score == best for score in scores)
    return f" {equal} configurations have this score; the first is taken." if equal > 1 else ""


def describe_point(point: Mapping[str, Any]) -> str:
    """Return a point as a text; a value that is a mapping is shown by its last entry."""
    shown = {name: list(value.values())[-1] if isinstance(value, Mapping) else value for name, value in point.items()}
    return ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in shown.items()
    )
