"""The defaults of public arguments, which users count on: ``defaults.txt`` has them all.

A default that is changed on purpose is written there by ``python -m tests.contracts.test_defaults``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from fl_lightning.words import short_repr

FILE = Path(__file__).with_name("defaults.txt")
ROOMS = ("", ".data", ".datamodules", ".diagnostics", ".executors", ".experiment", ".metrics", ".models")
ROOMS += (".partitioners", ".parts", ".report")


def lines() -> list[str]:
    """Return a line for each public function, and for each class and its methods, if it has defaults of its own."""
    found: set[str] = set()
    for room in ROOMS:
        package = import_module(f"fl_lightning{room}")
        for name in getattr(package, "__all__", vars(package)):
            thing = getattr(package, name)
            for owner in inspect.getmro(thing) if inspect.isclass(thing) else (thing,):
                if getattr(owner, "__module__", "").startswith("fl_lightning") and not name.startswith("_"):
                    found.update(lines_of(owner))
    return sorted(found)


def lines_of(owner: Any) -> set[str]:
    if not inspect.isclass(owner):
        return {line(owner.__name__, owner)} - {""} if inspect.isfunction(owner) else set()
    found = set()
    for name, member in vars(owner).items():
        function = getattr(member, "__func__", member)
        if inspect.isfunction(function) and (name == "__init__" or not name.startswith("_")):
            found.add(line(owner.__name__ if name == "__init__" else f"{owner.__name__}.{name}", function))
    return found - {""}


def line(name: str, function: Callable[..., Any]) -> str:
    parameters = inspect.signature(function).parameters.values()
    given = [f"{each.name}={short_repr(each.default)}" for each in parameters if each.default is not each.empty]
    return f"{name}: {', '.join(given)}" if given else ""


def test_defaults_are_those_that_are_written_down() -> None:
    assert lines() == FILE.read_text("utf-8").splitlines()


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n", "utf-8")
