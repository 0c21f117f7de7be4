"""All entries of the zoo."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from zoo.entry import Entry

ENTRIES: list[Entry] = [
    entry
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py"))
    for entry in getattr(import_module(f"zoo.modules.{path.stem}"), "ENTRIES", [])
]
