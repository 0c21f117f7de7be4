"""Callbacks of which a trainer may have one.

When a trainer is made, Lightning itself refuses two of one class that have a state. It does not look at those that the
module's ``configure_callbacks`` returns, or that are added to ``trainer.callbacks``.
"""

from __future__ import annotations

from collections.abc import Sequence


def check_alone(callback: object, callbacks: Sequence[object], what: str, why: str) -> None:
    """Raise ``ValueError`` if the trainer has a second callback of a kind.

    Args:
        callback: The first one.
        callbacks: All of this kind.
        what: What they are.
        why: Why there may not be two.
    """
    others = [each for each in callbacks if each is not callback]
    if others:
        names = f"{type(callback).__name__} and {type(others[0]).__name__}"
        raise ValueError(f"The trainer has two {what}, {names}; {why}. Keep one of them.")
