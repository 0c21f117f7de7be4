"""Durations as short texts."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return a duration as a short text: ``"0.3 s"``, ``"40 s"``, ``"12 min"``, ``"3.5 h"`` or ``"2.1 days"``."""
    if seconds < 0.95:
        return f"{max(seconds, 0.1):.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
