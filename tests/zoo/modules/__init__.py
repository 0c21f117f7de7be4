"""All entries of the zoo: those of each file's ``ENTRIES``; in long runs those of its ``LONG``, of unequal sizes."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

from zoo.entry import UNEQUAL, Entry

_FILES = [import_module(f"zoo.modules.{path.stem}") for path in sorted(Path(__file__).parent.glob("[a-z]*.py"))]
ENTRIES: list[Entry] = [
    *(entry for file in _FILES for entry in getattr(file, "ENTRIES", [])),
    *(replace(entry, long=True, sizes=UNEQUAL) for file in _FILES for entry in getattr(file, "LONG", [])),
]
