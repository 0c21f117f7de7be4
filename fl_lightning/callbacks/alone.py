"""Callbacks of which a trainer may have one.

When a trainer is made, Lightning itself refuses two of one class that have a state. It does not look at those that the
module's ``configure_callbacks`` returns, or that are added to ``trainer.callbacks``.
"""

from __future__ import annotations

from typing import Any


def check_alone(callback: object, kind: type, trainer: Any, what: str, why: str) -> None:
    """Raise ``ValueError`` if the trainer has a second callback of a class.

    Args:
        callback: The first one.
        kind: The class.
        trainer: The trainer.
        what: What such callbacks are.
        why: Why there may not be two.
    """
    others = [each for each in trainer.callbacks if isinstance(each, kind) and each is not callback]
    if others:
        names = f"{type(callback).__name__} and {type(others[0]).__name__}"
        raise ValueError(f"The trainer has two {what}, {names}; {why}. Keep one of them.")
