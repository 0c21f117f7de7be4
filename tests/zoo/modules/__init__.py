"""All entries of the zoo: those of each file's ``ENTRIES``; in long runs those of its ``LONG``, of unequal sizes.

A short last batch costs as much as all others. So stacked entries of files in which sizes do not matter have none.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from zoo.entry import SIZES, UNEQUAL, WHOLE, Entry

_OF_SIZES = {"logging", "losses", "metrics", "norms", "randomness", "sizes", "unmapped"}


def _quick(file: Any) -> list[Entry]:
    """Return a file's ``ENTRIES`` as default tests have them."""
    entries: list[Entry] = getattr(file, "ENTRIES", [])
    if file.__name__.rpartition(".")[2] in _OF_SIZES:
        return entries
    return [
        replace(entry, sizes=WHOLE) if entry.stacked and not entry.long and entry.sizes == SIZES else entry
        for entry in entries
    ]


_FILES = [import_module(f"zoo.modules.{path.stem}") for path in sorted(Path(__file__).parent.glob("[a-z]*.py"))]
ENTRIES: list[Entry] = [
    *(entry for file in _FILES for entry in _quick(file)),
    *(replace(entry, long=True, sizes=UNEQUAL) for file in _FILES for entry in getattr(file, "LONG", [])),
]
