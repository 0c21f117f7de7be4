"""Misspells one attribute in each file of the library, in a copy, and counts what mypy finds.

``python tests/misspellings.py`` prints what it does not find; ``--seed 1`` misspells others.
"""

import argparse
import ast
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[1]
SUFFIX = "_misspelt"


def library_files() -> list[Path]:
    """Return the library's files that mypy checks, relative to the repository."""
    files = sorted((ROOT / "fl_lightning").rglob("*.py"))
    return [path.relative_to(ROOT) for path in files if "recipes" not in path.relative_to(ROOT).parts]


def misspell(path: Path, rng: Random) -> int | None:
    """Misspell one attribute that a file reads, drawn at random; return its line, ``None`` if it reads none."""
    source = path.read_text(encoding="utf-8")
    reads = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    ]
    if not reads:
        return None
    node = rng.choice(reads)
    assert node.end_lineno is not None and node.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)
    line = lines[node.end_lineno - 1]
    lines[node.end_lineno - 1] = line[: node.end_col_offset] + SUFFIX.encode() + line[node.end_col_offset :]
    path.write_bytes(b"".join(lines))
    return node.end_lineno


def unnoticed(files: Sequence[Path], seed: int, folder: Path) -> tuple[int, list[str]]:
    """Misspell an attribute in each of some files of a copy; return how many, and the lines of which mypy is silent.

    Args:
        files: The files, relative to the repository.
        seed: Chooses the attributes.
        folder: Where the copy is made.
    """
    shutil.copytree(ROOT / "fl_lightning", folder / "fl_lightning", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    if (ROOT / ".mypy_cache").is_dir():
        shutil.copytree(ROOT / ".mypy_cache", folder / ".mypy_cache")  # mypy compares contents, not times
    rng = Random(seed)
    misspelt = {}
    for path in files:
        line = misspell(folder / path, rng)
        if line is not None:
            misspelt[path] = line
    mypy = [sys.executable, "-m", "mypy", "--no-error-summary", "--no-pretty"]
    found = subprocess.run(mypy, cwd=folder, capture_output=True, text=True, check=False).stdout.splitlines()
    errors = {tuple(error.split(":")[:2]) for error in found if ": error: " in error}
    silent = [(path, line) for path, line in misspelt.items() if (str(path), str(line)) not in errors]
    texts = [(folder / path).read_text(encoding="utf-8").splitlines()[line - 1].strip() for path, line in silent]
    return len(misspelt), [f"{path}:{line}: {text}" for (path, line), text in zip(silent, texts, strict=True)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100, help="how many files, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    files = Random(given.seed).sample(library_files(), given.files)
    with tempfile.TemporaryDirectory() as folder:
        number, silent = unnoticed(files, given.seed, Path(folder))
    print(*silent, sep="\n")
    print(f"mypy finds {number - len(silent)} of {number} misspelt attributes")
