"""The defaults of public arguments, which users count on: ``defaults.txt`` has them all."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

from helpers.written import assert_as_in

from fl_lightning.words import short_repr

FILE = Path(__file__).with_name("defaults.txt")
ROOMS = """fl_lightning fl_lightning.data fl_lightning.datamodules fl_lightning.diagnostics fl_lightning.executors
    fl_lightning.experiment fl_lightning.metrics fl_lightning.models fl_lightning.partitioners fl_lightning.parts
    fl_lightning.report"""


def lines() -> list[str]:
    """Return a line for each public function, constructor and method that has defaults."""
    found: set[str] = set()
    for room in map(import_module, ROOMS.split()):
        for name in getattr(room, "__all__", [name for name in vars(room) if not name.startswith("_")]):
            thing = getattr(room, name)
            for owner in inspect.getmro(thing) if inspect.isclass(thing) else [thing]:
                if getattr(owner, "__module__", "").startswith("fl_lightning"):
                    found.update(lines_of(owner))
    return sorted(found)


def lines_of(owner: Any) -> set[str]:
    found = set()
    for name, member in vars(owner).items() if inspect.isclass(owner) else [(owner.__name__, owner)]:
        function = getattr(member, "__func__", member)
        if inspect.isfunction(function) and (name == "__init__" or not name.startswith("_")):
            shown = inspect.signature(function).parameters.values()
            given = [f"{each.name}={short_repr(each.default)}" for each in shown if each.default is not each.empty]
            if given:
                found.add(f"{function.__qualname__.removesuffix('.__init__')}: {', '.join(given)}")
    return found


def test_defaults_are_those_that_are_written_down(tmp_path: Path) -> None:
    assert_as_in(FILE, lines(), tmp_path)
