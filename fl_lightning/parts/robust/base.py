"""The base of robust aggregations, and of the steps that may come before one."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from fl_lightning.arguments import check_instance
from fl_lightning.parts.aggregation import Aggregation
from fl_lightning.parts.contracts import call_for_vector
from fl_lightning.parts.federation import ClientResult, Federation, accumulator
from fl_lightning.parts.part import Part
from fl_lightning.parts.robust.updates import Updates


class PreAggregation(Part, ABC):
    """Replaces the updates by mixtures of them, so that honest ones are more alike before they are aggregated."""

    @abstractmethod
    def mix(self, updates: Updates) -> Updates:
        """Return the mixtures."""


class RobustAggregation(Aggregation):
    """Merges updates by a rule that tolerates some arbitrary ones; the server moves by the result.

    All clients have the same weight, because a client could lie about its size. A stale result of an asynchronous
    algorithm counts like a fresh one. The results of a round are kept until the server moves: m models of P parameters
    take ``4 m P`` bytes in single precision, 4 GB for 100 clients of 10^7 parameters. No further copies are made.

    Args:
        before: A step before the rule: :class:`Bucketing`, :class:`NearestNeighborMixing` or
            :class:`NormBounding`.

    Raises:
        TypeError: If ``before`` is none of these.
    """

    def __init__(self, before: PreAggregation | None = None) -> None:
        if before is not None:
            check_instance("before", before, PreAggregation, "Give Bucketing(2) or NearestNeighborMixing(1), or None.")
        self.before = before
        self._results: list[ClientResult] = []

    def attach(self, federation: Federation, *, fresh: bool = True) -> None:
        """Take the federation of a fit, together with :attr:`before`."""
        super().attach(federation, fresh=fresh)
        if self.before is not None:
            self.before.attach(federation, fresh=fresh)

    def on_fit_start(self, federation: Federation) -> None:
        """Start without results."""
        self._results = []

    def on_round_start(self, round_index: int) -> None:
        """Prepare a round."""
        if self.before is not None:
            self.before.on_round_start(round_index)

    def on_round_abort(self) -> None:
        """Forget the round's results."""
        super().on_round_abort()
        self._results = []

    def update(self, result: ClientResult) -> None:
        """Keep a result until the server moves."""
        self._results.append(result)

    def merge(self, model: Tensor) -> Tensor | None:
        """Return the server's parameters moved by the rule, float64 of shape ``(num_parameters,)``."""
        results, self._results = self._results, []
        if not results:
            return None
        updates = Updates(results)
        updates = updates if self.before is None else self.before.mix(updates)
        current, what = model.to(accumulator(model)), f"({len(model)},), the server's step"
        return current + call_for_vector(self, "rule", updates, watch=(current,), lengths=(len(model),), allowed=what)

    @abstractmethod
    def rule(self, updates: Updates) -> Tensor:
        """Return the server's step, float64 of shape ``(num_parameters,)``."""


def check_enough(rows: int, needed: int, who: object) -> None:
    """Raise ``ValueError`` if a round has fewer updates than a rule needs."""
    if rows < needed:
        raise ValueError(
            f"{who} needs at least {needed} updates to merge, but there are {rows} (buckets, if they were mixed "
            "first). Let more clients train in a round, or allow for fewer attackers."
        )
