"""Imports run one way, heavy packages are imported late, and files stay short."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(p for folder in ("fl_lightning", "datamodules", "recipes") for p in (ROOT / folder).rglob("*.py"))
LIBRARY = [path for path in FILES if ROOT / "fl_lightning" in path.parents]
PRIVATE = ROOT / "fl_lightning" / "_lightning"
MATHEMATICS = [
    path
    for path in LIBRARY
    if {"partitioners", "parts"} & set(path.parts)
    or path.relative_to(ROOT / "fl_lightning").as_posix()
    in {"arguments.py", "metrics.py", "seeding.py", "data/batches.py", "data/splits.py", "data/standardize.py"}
]
HEAVY = {"cvxpy", "datasets", "matplotlib", "pandas", "pyarrow", "sklearn", "wandb"}


def imports(path: Path, *, module_level: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of every import; of those outside functions and type checking only, if asked."""
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    if module_level:
        nodes = [node for statement in tree.body if not isinstance(statement, ast.If) for node in shallow(statement)]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def shallow(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a statement without entering functions."""
    yield node
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        for child in ast.iter_child_nodes(node):
            yield from shallow(child)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_files_are_found() -> None:
    assert len(MATHEMATICS) > 15
    assert len(FILES) > len(LIBRARY) > len(MATHEMATICS)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_run_from_recipes_to_datamodules_to_the_library(path: Path) -> None:
    allowed = {"fl_lightning": {"fl_lightning"}, "datamodules": {"fl_lightning", "datamodules"}}
    package = path.relative_to(ROOT).parts[0]
    used = {module.split(".")[0] for module, _ in imports(path)} & {"fl_lightning", "datamodules", "recipes"}
    assert used <= allowed.get(package, {"fl_lightning", "datamodules", "recipes"})


@pytest.mark.parametrize("path", MATHEMATICS, ids=name_of)
def test_mathematics_knows_neither_lightning_nor_the_loop(path: Path) -> None:
    for module, _ in imports(path):
        assert module.split(".")[0] not in {"lightning", "pytorch_lightning"}
        assert not module.startswith(("fl_lightning.loop", "fl_lightning.algorithms", "fl_lightning._lightning"))


@pytest.mark.parametrize("path", [path for path in LIBRARY if PRIVATE not in path.parents], ids=name_of)
def test_lightnings_private_names_are_used_in_one_place(path: Path) -> None:
    for module, name in imports(path):
        if module.split(".")[0] == "lightning":
            assert not name.startswith("_"), (module, name)
            assert not module.startswith(("lightning.pytorch.loops", "lightning.pytorch.trainer")), module
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = ast.unparse(node.value)
            assert owner.split(".")[-1] not in {"trainer", "pl_module", "strategy", "fit_loop"}, ast.unparse(node)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_heavy_packages_are_imported_where_they_are_used(path: Path) -> None:
    assert not {module.split(".")[0] for module, _ in imports(path, module_level=True)} & HEAVY


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 320


def test_importing_the_library_loads_no_heavy_package_that_lightning_does_not() -> None:
    program = "import sys; {}; print(*sorted({{m.split('.')[0] for m in sys.modules}} & {}))"
    loaded = []
    for statement in ("import lightning, torchmetrics, torchvision", "import fl_lightning, fl_lightning.models"):
        command = [sys.executable, "-c", program.format(statement, HEAVY)]
        loaded.append(set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()))
    assert loaded[1] <= loaded[0]
