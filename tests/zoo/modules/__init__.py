"""All entries of the zoo: those of each file's ``ENTRIES``, and, in long runs, those of its ``LONG``."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

from zoo.entry import Entry

_FILES = [import_module(f"zoo.modules.{path.stem}") for path in sorted(Path(__file__).parent.glob("[a-z]*.py"))]
ENTRIES: list[Entry] = [
    *(entry for file in _FILES for entry in getattr(file, "ENTRIES", [])),
    *(replace(entry, long=True) for file in _FILES for entry in getattr(file, "LONG", [])),
]
