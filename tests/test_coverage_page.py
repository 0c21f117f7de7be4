"""docs/coverage.md names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "coverage.md"
ROWS = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ") and "---" not in line]


def test_every_row_has_module_test_and_recipe_or_a_reason() -> None:
    assert len(ROWS) > 90
    for row in ROWS:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 4, row
        assert cells[0], row
        assert cells[1], row


@pytest.mark.parametrize(
    "path", sorted(set(re.findall(r"`([\w./-]+\.(?:py|yaml|md))`", PAGE.read_text(encoding="utf-8"))))
)
def test_files_exist(path: str) -> None:
    places = [ROOT / path, ROOT / "fl_lightning" / path, ROOT / "tests" / path, ROOT / "recipes" / path]
    assert any(place.is_file() for place in places)
