"""Settings as a user keeps them in a module of their own."""

from __future__ import annotations

PENALISE = False
CALLS = 0


def penalises() -> bool:
    """Whether the loss has a penalty."""
    return PENALISE


def set_penalise(value: bool) -> None:
    """Say whether the loss has a penalty."""
    global PENALISE
    PENALISE = value


def count_call() -> None:
    """Count a call."""
    global CALLS
    CALLS += 1
