"""Long expectations of a test stand in a text file beside it, which somebody has read."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path


def assert_as_in(path: Path, lines: Iterable[str], folder: Path) -> None:
    """Compare lines with those of a file; what is found is left in a folder."""
    found = "".join(f"{line.rstrip()}\n" for line in lines)
    (folder / path.name).write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8"), f"If this is right, copy {folder / path.name} to {path}."


def messages(
    things: Mapping[str, Callable[[Path], object]], folder: Path, logged: Callable[[], list[str]] = list
) -> Iterator[str]:
    """Do things, each in a folder of its own; yield the error of each and its notes, or else what it warns of.

    Args:
        things: What is done, by the name that the line begins with.
        folder: Where the folders are.
        logged: Returns lines that were logged meanwhile, which come last.
    """
    for number, (name, do) in enumerate(things.items()):
        own = folder / f"{number}"
        own.mkdir(parents=True)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                do(own)
            except Exception as error:
                told = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
            else:
                ours = [each for each in warned if each.category is UserWarning and "val loop" not in str(each.message)]
                told = [f"{each.message}" for each in ours]
        line = f"{name}: {'; then '.join(told + logged()) or 'nothing'}".replace(str(own), "FOLDER")
        yield re.sub(r"\b[0-9a-f]{12}\b|0x[0-9a-f]+", "NUMBER", line)


def told(call: Callable[[], object], folder: Path) -> str:
    """Return the kind, the message and the notes of an error; the name of a folder is left out."""
    try:
        call()
    except Exception as error:
        text = " ".join([str(error), *getattr(error, "__notes__", [])])
        return f"{type(error).__name__}: {text}".replace(f"{folder}/", "")
    return "no error"
