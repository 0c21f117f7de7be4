"""What a test expects, where it is long: paragraphs of a text file beside the test, each below its name."""

from __future__ import annotations

from pathlib import Path


def written(test: str, name: str) -> list[str]:
    """Return the lines below a name in the text file of a test file."""
    paragraphs = Path(test).with_suffix(".txt").read_text("utf-8").split("\n\n")
    [lines] = [each.splitlines()[1:] for each in paragraphs if each.splitlines()[0] == f"# {name}"]
    return lines
