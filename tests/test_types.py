"""The lint step knows the types of attributes in every room."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUFFIX = b"_misspelt"


def copy_library(folder: Path) -> None:
    """Copy what mypy reads, and what it already knows, so that it looks at changed files alone."""
    shutil.copytree(ROOT / "fl_lightning", folder / "fl_lightning", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    if (ROOT / ".mypy_cache").is_dir():
        shutil.copytree(ROOT / ".mypy_cache", folder / ".mypy_cache")


def attributes_read(path: Path) -> list[ast.Attribute]:
    """Return the places at which a file reads attributes."""
    nodes = ast.walk(ast.parse(path.read_bytes()))
    return [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)]


def misspell(path: Path, node: ast.Attribute) -> int:
    """Misspell an attribute at one of the places of :func:`attributes_read`; return its line."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    lines = path.read_bytes().splitlines(keepends=True)
    line = lines[node.end_lineno - 1]
    lines[node.end_lineno - 1] = line[: node.end_col_offset] + SUFFIX + line[node.end_col_offset :]
    path.write_bytes(b"".join(lines))
    return node.end_lineno


def lines_with_errors(folder: Path) -> set[tuple[str, int]]:
    """Return the file and the line of each error that mypy finds in a copy."""
    mypy = [sys.executable, "-m", "mypy", "--no-error-summary", "--no-pretty", "fl_lightning"]
    found = subprocess.run(mypy, cwd=folder, capture_output=True, text=True, check=False).stdout
    errors = [line.split(":") for line in found.splitlines() if ": error: " in line]
    return {(path, int(number)) for path, number, *_ in errors}


#: Attributes that rooms read: states of parts, what Lightning sets outside of the trainer's class, and what one room
#: knows of another.
ATTRIBUTES = {
    "parts": ["velocity", "chain", "duals", "flights"],
    "_lightning": ["profiler", "callbacks"],
    "callbacks": ["fast_dev_run", "quiet"],
    "clients": ["overfit_batches", "batches_per_step"],
    "executors": ["algorithm"],
    "loop.py": ["take_settings"],
    "algorithms": ["variates"],
    "diagnostics": ["flights"],
}


@pytest.mark.long
def test_a_misspelt_attribute_is_an_error_of_mypy_in_every_room(tmp_path: Path) -> None:
    copy_library(tmp_path)
    lines = set()
    for room, attribute in [(room, name) for room, names in ATTRIBUTES.items() for name in names]:
        inside = tmp_path / "fl_lightning" / room
        files = [inside] if inside.is_file() else sorted(inside.rglob("*.py"))
        path, place = next((path, node) for path in files for node in attributes_read(path) if node.attr == attribute)
        lines.add((str(path.relative_to(tmp_path)), misspell(path, place)))
    assert lines <= lines_with_errors(tmp_path)
