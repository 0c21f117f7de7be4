"""Refuses unknown entries of tables and sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def refuse_unknown(place: str, given: Iterable[object], known: Sequence[str]) -> None:
    """Raise ``ValueError`` for the first entry that is not known, with the nearest known one and all known ones."""
    for name in given:
        if name not in known:
            close = get_close_matches(str(name), known, n=1)
            meant = f"Did you mean `{close[0]}`? " if close else ""
            raise ValueError(f"{place} has an unknown entry {name!r}. {meant}It takes {', '.join(known)}.")
