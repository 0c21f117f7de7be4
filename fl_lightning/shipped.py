"""The recipes, tables and sweeps that come with the package."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

RECIPES = Path(__file__).parent / "recipes"
"""The folder of recipes, and of what belongs to them."""


def shipped(kind: Literal["recipe", "table", "sweep"]) -> dict[str, Path]:
    """Return the files of a kind that come with the package, by name."""
    pattern = "*.py" if kind == "recipe" else f"{kind}s/*.yaml"
    return {path.stem: path for path in sorted(RECIPES.glob(pattern))}


def find_file(kind: Literal["table", "sweep"], name: str | os.PathLike[str], folder: Path = Path()) -> Path:
    """Return the path of a table or a sweep: that of a file, or of one that comes with the package, by its name.

    Args:
        kind: What the file is.
        name: The file, from a folder, or the name.
        folder: The folder; the current one if not given.

    Raises:
        FileNotFoundError: If there is neither; it says what was probably meant.
    """
    path = folder / name
    if path.exists() and not path.is_dir():
        return path
    known = shipped(kind)
    name = os.fspath(name)
    if name in known:
        return known[name]
    files = [file.name for file in folder.glob("*.y*ml")]
    raise FileNotFoundError(no_such(kind, name, [*known, *files]))


def no_such(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the sentences that say that there is nothing of a name, and what was probably meant."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {close[0]}?" if close else f"There are {', '.join(names)}."
    return f"There is no {kind} {name}. {hint}"
