"""Misspells one attribute in each of many files of the library, in a copy, and counts what mypy finds.

``python tests/misspellings.py`` prints what it does not find; ``--seed 1`` misspells others.
"""

from __future__ import annotations

import argparse
import ast
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

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


def main() -> None:
    """Misspell, and print what mypy does not find."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100, help="how many files, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = Random(given.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_library(folder)
        candidates = [path for path in sorted(folder.rglob("*.py")) if attributes_read(path)]
        files = rng.sample(candidates, given.files)
        lines = {path: misspell(path, rng.choice(attributes_read(path))) for path in files}
        errors = lines_with_errors(folder)
        missed = [(path, line) for path, line in lines.items() if (str(path.relative_to(folder)), line) not in errors]
        for path, line in missed:
            text = path.read_text(encoding="utf-8").splitlines()[line - 1]
            print(f"{path.relative_to(folder)}:{line}: {text.strip()}")
    print(f"mypy finds {len(files) - len(missed)} of {len(files)} misspelt attributes")


if __name__ == "__main__":
    main()
