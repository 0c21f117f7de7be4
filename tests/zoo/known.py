"""Differences that are known, with their causes. Whoever mends one takes it out: the tests insist on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """Entries of which an executor leaves something else behind than the loop by hand.

    Attributes:
        cause: Why.
        entries: Their names.
        aspects: What differs; everything, if the fit fails.
        executors: Under which executors.
    """

    cause: str
    entries: Sequence[str]
    aspects: Sequence[str] = ("weights", "values", "events")
    executors: Sequence[str] = ("vectorized", "auto")


KNOWN: list[Difference] = []


def cause_of(name: str, executor: str, aspect: str) -> str | None:
    """Return why an entry is known to differ, or ``None``."""
    for known in KNOWN:
        if name in known.entries and executor in known.executors and aspect in known.aspects:
            return known.cause
    return None
