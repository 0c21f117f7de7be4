"""What is said of many calls that are refused, as lines of text that a reader has read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def refusals(calls: Iterable[Callable[[Path], Any]], folder: Path) -> list[str]:
    """Return the kind and the message of each call's error, or of its warnings if there is none.

    Each call has a folder of its own, which messages name as ``HERE``.
    """
    lines = []
    for number, call in enumerate(calls):
        here = folder / f"call {number}"
        here.mkdir()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                call(here)
                said = [each.message for each in warned] or ["nothing"]
            except Exception as error:
                said = [error]
        lines += [f"{type(each).__name__}: {each}".replace(str(here), "HERE") for each in said]
    return lines
