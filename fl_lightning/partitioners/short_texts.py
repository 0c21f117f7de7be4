"""Shortens long names, and makes labels of them that matplotlib draws as they are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_BREAKS = " _/,;:=("  # a name may be cut behind them
_LONGEST = 28  # characters of a label
_LEAST = 8  # characters of the part in which names differ


def shortened(text: str, longest: int) -> str:
    """Return a text of at most ``longest`` characters: its beginning and its end, cut between words if possible."""
    if len(text) <= longest:
        return text
    end = longest // 3
    head, tail = text[: longest - end - 1], text[len(text) - end :]
    if text[len(head)] not in _BREAKS and (cut := 1 + max(map(head.rfind, _BREAKS))) > len(head) // 2:
        head = head[:cut]
    if text[-end - 1] not in _BREAKS and (cuts := [place for place, mark in enumerate(tail) if mark in _BREAKS]):
        tail = tail[cuts[0] + 1 :] if cuts[0] < end // 2 else tail
    return f"{head.rstrip()}…{tail.lstrip()}"


def shortened_together(texts: Sequence[str], longest: int) -> list[str]:
    """Return texts of about ``longest`` characters at most. Different texts stay different.

    Texts that would become equal keep the words in which they differ, behind as much of their common beginning as there
    is room for.
    """
    short = {text: shortened(text, longest) for text in texts}
    counts = Counter(short.values())
    for one in [one for one, count in counts.items() if count > 1]:
        alike = [text for text in short if short[text] == one]
        short |= dict(zip(alike, _kept_apart(alike, longest), strict=True))
    counts = Counter(short.values())
    numbers = {text: number for number, text in enumerate(short, start=1) if counts[short[text]] > 1}
    return [f"{short[text]} ({numbers[text]})" if text in numbers else short[text] for text in texts]


def label(text: str, longest: int = _LONGEST) -> str:
    """Return a text as matplotlib draws it: no formula between dollars, no line breaks, and not too long."""
    return labels([text], longest)[0]


def labels(texts: Sequence[str], longest: int = _LONGEST) -> list[str]:
    """Return the texts of one figure as :func:`label` does. Different texts stay different.

    Matplotlib leaves a name that begins with an underscore out of legends, so a blank precedes it.
    """
    short = shortened_together([" ".join(text.split()) for text in texts], longest)
    return [(" " if text.startswith("_") else "") + text.replace("$", r"\$") for text in short]


def _kept_apart(texts: Sequence[str], longest: int) -> list[str]:
    """Return texts with a common beginning or end by the part in which they differ."""
    begin, end = _common(texts)
    room = max(_LEAST, longest - min(len(begin), longest // 2) - bool(end))
    different = shortened_together([text[len(begin) : len(text) - len(end)] for text in texts], room)
    left = longest - max(map(len, different)) - bool(end)
    begin = shortened(begin, left) if left > 1 else ""
    return [f"{begin}{text.strip()}{'…' if end else ''}" for text in different]


def _common(texts: Sequence[str]) -> tuple[str, str]:
    """Return the words with which all texts begin and end; letters if they share no word."""
    begin = _beginning(texts)
    rest = [text[len(begin) :] for text in texts]
    end = _beginning([text[::-1] for text in rest])[::-1]
    words = re.match(f".*[{re.escape(_BREAKS)}]", begin), re.search(f"[{re.escape(_BREAKS)}].*", end)
    whole = tuple(match.group() if match else "" for match in words)
    return whole if any(whole) else (begin, end)  # type: ignore[return-value]


def _beginning(texts: Sequence[str]) -> str:
    """Return the letters with which all texts begin."""
    first, last = min(texts), max(texts)
    return first[: next((place for place, letter in enumerate(first) if last[place : place + 1] != letter), None)]
