"""Scores here beside those that others have published."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fl_lightning.experiment.readings import Select
from fl_lightning.experiment.statistics import summarize
from fl_lightning.report.results import Results


@dataclass(frozen=True)
class Score:
    """A mean over runs.

    Attributes:
        mean: The mean.
        sd: The standard deviation over runs; NaN if it is not known.
        runs: Number of runs.
    """

    mean: float
    sd: float
    runs: int

    @property
    def error(self) -> float:
        """The standard error of the mean; NaN if no standard deviation is known."""
        return self.sd / math.sqrt(self.runs)


@dataclass(frozen=True)
class Pair:
    """A score here and one that others have published, in the unit of the metric.

    Attributes:
        data: Name of the data set.
        method: Name of the method.
        source: Where theirs is published.
        select: The model whose score theirs is; ``None`` if the source does not say.
        here: Ours, by the same reading; ``None`` if the runs do not have it.
        there: Theirs.
        has_fewer_rounds: Whether ours are of fewer rounds than theirs.
    """

    data: str
    method: str
    source: str
    select: Select | None
    here: Score | None
    there: Score
    has_fewer_rounds: bool = False

    @property
    def difference(self) -> float:
        """Ours minus theirs; NaN without ours."""
        return math.nan if self.here is None else self.here.mean - self.there.mean

    @property
    def error(self) -> float:
        """The standard error of the difference; NaN if no standard deviation is known.

        Where only one is known, the other counts as equal to it.
        """
        if self.here is None:
            return math.nan
        sd_here = self.there.sd if math.isnan(self.here.sd) else self.here.sd
        sd_there = self.here.sd if math.isnan(self.there.sd) else self.there.sd
        return math.hypot(sd_here / math.sqrt(self.here.runs), sd_there / math.sqrt(self.there.runs))

    @property
    def is_met(self) -> bool | None:
        """Whether the difference is at most two standard errors; ``None`` if that is not known."""
        if self.has_fewer_rounds or math.isnan(self.error):
            return None
        return abs(self.difference) <= 2 * self.error


def published_score(number: float | Mapping[str, float], runs: int, factor: float = 1.0) -> Score:
    """Return a score of a table's ``published``.

    Args:
        number: The score, or ``{score, sd}``.
        runs: Number of runs behind it.
        factor: What it is divided by.
    """
    if not isinstance(number, Mapping):
        number = {"score": number}
    return Score(number["score"] / factor, number.get("sd", math.nan) / factor, runs)


def published_pairs(results: Results) -> Iterator[Pair]:
    """Yield each published score of the table whose method was run on the data set, with ours."""
    for data in results.data:
        # What others have published is in the unit that is printed.
        factor = results.scale(data).factor
        published: dict[str, dict[str, Any]] = results.table["data"][data]["published"]
        for source, entry in published.items():
            select = entry.get("select")
            here = results.scores_by(select, data)
            scores: dict[str, float | Mapping[str, float]] = entry["scores"]
            for method, number in scores.items():
                if method not in results.methods or results.scores_of(data)[method].isna().all():
                    continue
                there = published_score(number, entry.get("runs", 1), factor)
                ours = None
                if here is not None:
                    summary = summarize(here[method].dropna().to_numpy())
                    ours = Score(summary.mean, summary.sd, summary.num)
                runs = results.scored[(results.scored["data"] == data) & (results.scored["method"] == method)]
                has_fewer_rounds = bool((runs["rounds"].astype(int) < entry.get("rounds", 0)).any())
                yield Pair(data, method, source, select, ours, there, has_fewer_rounds)
