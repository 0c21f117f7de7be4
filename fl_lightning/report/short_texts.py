"""Shortens long names."""

from __future__ import annotations


def shortened(text: str, longest: int) -> str:
    """Return a text of at most ``longest`` characters: its beginning and its end, where names mostly differ."""
    if len(text) <= longest:
        return text
    end = longest // 3
    return f"{text[: longest - end - 1]}…{text[len(text) - end :]}"
