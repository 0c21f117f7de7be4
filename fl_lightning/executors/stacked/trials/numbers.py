"""Compares the steps and logged values of clients alone and in a stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fl_lightning._lightning.batch_notes import Witness
from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.log_replay import Journal
from fl_lightning.executors.stacked.causes import BY_ANOTHER_WAY
from fl_lightning.parts.messages import ClientResult


def compare_steps(result: ClientResult, steps: int, summed_lr: Sequence[float]) -> None:
    """Raise ``CannotVectorize`` if a client makes other steps alone than in a stack, or with other learning rates."""
    if result.num_steps != steps:
        raise CannotVectorize(f"a client makes {result.num_steps} steps alone, and {steps} in a stack")
    pairs = zip(result.summed_lr, summed_lr, strict=False)
    if any(abs(alone - at_once) > 1e-6 * max(abs(alone), 1e-12) for alone, at_once in pairs):
        raise CannotVectorize("a client's learning rates are others in a stack")


def compare_logs(witnesses: Sequence[Witness], journal: Journal, tolerance: float) -> None:
    """Raise ``CannotVectorize`` if clients log other values alone than in a stack.

    Args:
        witnesses: What clients logged alone.
        journal: What they logged in a stack.
        tolerance: By how much their training may differ, relative to how far it moves a tensor.
    """
    alone: dict[Any, tuple[int, float]] = {}
    for witness in witnesses:
        for key, (count, total) in witness.logged.items():
            before = alone.get(key, (0, 0.0))
            alone[key] = before[0] + count, before[1] + total
    at_once = journal.logged_sums()
    for key in {**alone, **at_once}:
        (n, a), (m, b) = alone.get(key, (0, 0.0)), at_once.get(key, (0, 0.0))
        if b != b and a == a:
            raise CannotVectorize(BY_ANOTHER_WAY)
        if n != m or not (a == b or abs(a - b) <= 10 * tolerance * (abs(a) + 1e-3 * n) or (a != a and b != b)):
            raise CannotVectorize(f"what is logged as {key[1]!r} is another value in a stack")
