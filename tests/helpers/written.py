"""Long expectations of a test stand in a text file beside it, which somebody has read."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path


def assert_as_in(path: Path, lines: Iterable[str], folder: Path) -> None:
    """Compare lines with those of a file; what is found is left in a folder."""
    found = "".join(f"{line.rstrip()}\n" for line in lines)
    (folder / path.name).write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8"), f"If this is right, copy {folder / path.name} to {path}."


def messages(
    things: Mapping[str, Callable[[Path], object]], folder: Path, logged: Callable[[], list[str]] = list
) -> Iterator[str]:
    """Do things, each in a folder of its own; yield what each tells, after its name.

    Args:
        things: What is done, by the name that the line begins with.
        folder: Where the folders are.
        logged: Returns lines that were logged meanwhile, which come last.
    """
    for (name, do), own in zip(things.items(), _folders(folder), strict=False):
        said = _said(partial(do, own))
        yield f"{name}: {_shown([*said, *logged()], own)}"


def all_told(calls: Iterable[Callable[[Path], object]], folder: Path) -> Iterator[str]:
    """Yield what each call tells, each in a folder of its own."""
    for call, own in zip(calls, _folders(folder), strict=False):
        yield told(partial(call, own), own)


def told(call: Callable[[], object], folder: Path) -> str:
    """Return the error of a call and its notes, or else what it warns of; ``FOLDER`` stands for the folder."""
    return _shown(_said(call), folder)


def _folders(folder: Path) -> Iterator[Path]:
    for number in count():
        own = folder / f"{number}"
        own.mkdir(parents=True)
        yield own


def _said(call: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            call()
        except Exception as error:
            return [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
    # Lightning warns of its own matters.
    ours = [each for each in warned if each.category is UserWarning and "val loop" not in str(each.message)]
    return [f"{each.category.__name__}: {each.message}" for each in ours]


def _shown(said: list[str], folder: Path) -> str:
    """Return all in one line; ``NUMBER`` stands for an address or a digest, which differ from run to run."""
    line = "; then ".join(said) or "nothing"
    return re.sub(r"\b[0-9a-f]{12}\b|0x[0-9a-f]+", "NUMBER", line.replace(str(folder), "FOLDER"))
