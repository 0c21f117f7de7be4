"""Long expectations of a test stand in a text file beside it, which somebody has read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def assert_as_in(path: Path, lines: Iterable[str], folder: Path) -> None:
    """Compare lines with those of a file; what is found is left in a folder."""
    found = "".join(f"{line.rstrip()}\n" for line in lines)
    (folder / path.name).write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8"), f"If this is right, copy {folder / path.name} to {path}."
