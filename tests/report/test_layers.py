"""The rooms of experiments and reports: no import goes up or in a circle, and old import paths still work."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fl_lightning
from fl_lightning import experiment, report

ROOT = Path(fl_lightning.__file__).parent


def imports_of(room: str) -> dict[str, set[str]]:
    """Return the modules of the package that each module of a room imports, anywhere in its file."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / room).rglob("*.py"):
        name = ".".join(["fl_lightning", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
        used = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fl_lightning."):
                used.add(str(node.module))
        found[name] = used
    return found


def test_experiments_know_nothing_of_reports() -> None:
    assert not {used for names in imports_of("experiment").values() for used in names if "report" in used}


@pytest.mark.parametrize("room", ["experiment", "report"])
def test_no_module_of_a_room_imports_itself_by_way_of_others(room: str) -> None:
    imports = imports_of(room)
    assert len(imports) > 10

    def reached(name: str) -> set[str]:
        seen: set[str] = set()
        todo = [name]
        while todo:
            for used in imports.get(todo.pop(), set()) - seen:
                seen.add(used)
                todo.append(used)
        return seen

    assert [name for name in imports if name in reached(name)] == []


def test_importing_the_package_loads_neither_room() -> None:
    program = (
        "import sys, fl_lightning\n"
        "assert not [name for name in sys.modules if name.startswith(('fl_lightning.report', 'fl_lightning.experi'))]\n"
        "assert 'partition_report' in dir(fl_lightning)\n"
        "from fl_lightning import partition_report\n"
        "assert fl_lightning.report.partition_report is partition_report\n"
        "assert fl_lightning.experiment.run_table\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_names_that_do_not_exist_are_ordinary_errors() -> None:
    with pytest.raises(AttributeError, match="module 'fl_lightning' has no attribute 'FedNothing'"):
        _ = fl_lightning.FedNothing  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"module 'fl_lightning\.experiment' has no attribute 'nothing'"):
        _ = experiment.nothing  # type: ignore[attr-defined]


def test_presets_are_found_in_their_earlier_place() -> None:
    assert experiment.run_presets is report.run_presets  # type: ignore[attr-defined]
