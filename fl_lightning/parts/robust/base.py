"""The base of robust aggregations, and of the steps that may come before one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fl_lightning.arguments import check_instance, got
from fl_lightning.parts.aggregation import Aggregation
from fl_lightning.parts.federation import ClientResult, Federation, accumulator
from fl_lightning.parts.guards.changes_in_place import call
from fl_lightning.parts.guards.contracts import call_for_vector, returns
from fl_lightning.parts.part import Part
from fl_lightning.parts.robust.updates import Updates
from fl_lightning.representation import counted


def _checked_mixtures(part: Any, method: str, arguments: Any, returned: Any) -> Updates:
    """Return a step's mixtures; raise ``TypeError`` if they are none."""
    if not isinstance(returned, Updates):
        raise TypeError(
            f"`{type(part).__name__}.{method}` must return Updates, such as `updates.mixed(matrix)`, got "
            f"{got(returned)}."
        )
    return returned


class PreAggregation(Part, ABC):
    """Replaces the updates by mixtures of them, so that honest ones are more alike before they are aggregated."""

    @returns(_checked_mixtures)
    @abstractmethod
    def mix(self, updates: Updates) -> Updates:
        """Return the mixtures, such as ``updates.mixed(matrix)``."""


class RobustAggregation(Aggregation):
    """Merges updates by a rule that tolerates some arbitrary ones; the server moves by the result.

    The module's buffers become the mean of the clients', with the weights that the rule gives their parameters, or the
    plain one of a rule without weights. It does not tolerate arbitrary ones; ``buffers="server"`` keeps them out.

    All clients have the same weight, because a client could lie about its size. A stale result of an asynchronous
    algorithm counts like a fresh one. The results of a round are kept until the server moves: m models of P parameters
    take ``4 m P`` bytes in single precision, 4 GB for 100 clients of 10^7 parameters. Only the first calls of a user's
    own step before the rule copy them, to see whether it changes them.

    Args:
        before: A step before the rule: :class:`Bucketing`, :class:`NearestNeighborMixing` or
            :class:`NormBounding`.

    Raises:
        TypeError: If ``before`` is none of these.
    """

    merges_buffers = True

    def __init__(self, before: PreAggregation | None = None) -> None:
        if before is not None:
            check_instance("before", before, PreAggregation, "Give Bucketing(2) or NearestNeighborMixing(1), or None.")
        self.before = before
        self._results: list[ClientResult] = []

    @property
    def held_parts(self) -> Sequence[Part]:
        """:attr:`before`, if there is such a step."""
        return () if self.before is None else (self.before,)

    def on_fit_start(self, federation: Federation) -> None:
        """Start without results."""
        self._results = []

    def on_round_abort(self) -> None:
        """Forget the round's results."""
        super().on_round_abort()
        self._results = []

    def update(self, result: ClientResult) -> None:
        """Keep a result until the server moves."""
        self._results.append(result)

    def merge(self, model: Tensor) -> Tensor | None:
        """Return the server's parameters moved by the rule, and the clients' buffers, float64 of shape ``(size,)``."""
        results, self._results = self._results, []
        if not results:
            return None
        updates = Updates(results)
        updates = updates if self.before is None else call(self.before, "mix", updates, results=results)
        n, what = updates.size, f"({updates.size},), the server's step"
        current = model[:n].to(accumulator(model))
        step = call_for_vector(self, "rule", updates, watch=(current,), lengths=(n,), allowed=what)
        return torch.cat([current + step, updates.buffers().to(current)])

    @abstractmethod
    def rule(self, updates: Updates) -> Tensor:
        """Return the server's step, float64 of shape ``(num_parameters,)``."""


def check_enough(updates: Updates, needed: int, who: object) -> None:
    """Raise ``ValueError`` if a round has fewer updates, or mixtures of them, than a rule needs."""
    rows, results = len(updates), len(updates.results)
    if rows < needed:
        few = f"there {'is' if rows == 1 else 'are'} {rows}"
        mixed = f"{few}, mixtures of {counted(results, 'update')}"
        raise ValueError(
            f"{who} needs at least {needed} updates to merge, but {few if rows == results else mixed}. Let more "
            "clients train in a round, or allow for fewer attackers."
        )
