"""The lint step knows the types of attributes in every room."""

from pathlib import Path

import pytest
from misspellings import attributes_read, copy_library, lines_with_errors, misspell

#: Attributes that rooms read: states of parts, what Lightning sets outside of the trainer's class, and what one room
#: knows of another.
ATTRIBUTES = [
    ("parts", "velocity"),
    ("parts", "chain"),
    ("parts", "duals"),
    ("parts", "flights"),
    ("_lightning", "profiler"),
    ("_lightning", "callbacks"),
    ("callbacks", "fast_dev_run"),
    ("callbacks", "quiet"),
    ("clients", "overfit_batches"),
    ("clients", "batches_per_step"),
    ("executors", "algorithm"),
    ("loop.py", "take_settings"),
    ("algorithms", "variates"),
    ("diagnostics", "flights"),
]


@pytest.mark.long
def test_a_misspelt_attribute_is_an_error_of_mypy_in_every_room(tmp_path: Path) -> None:
    copy_library(tmp_path)
    lines = set()
    for room, attribute in ATTRIBUTES:
        inside = tmp_path / "fl_lightning" / room
        files = [inside] if inside.is_file() else sorted(inside.rglob("*.py"))
        path, place = next((path, node) for path in files for node in attributes_read(path) if node.attr == attribute)
        lines.add((str(path.relative_to(tmp_path)), misspell(path, place)))
    assert lines <= lines_with_errors(tmp_path)
