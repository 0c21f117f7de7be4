"""docs/coverage.md names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_files_exist() -> None:
    paths = set(re.findall(r"`([\w./-]+\.(?:py|yaml|md))`", PAGE.read_text(encoding="utf-8")))
    folders = [ROOT, ROOT / "fl_lightning", ROOT / "tests", ROOT / "recipes"]
    assert [path for path in sorted(paths) if not any((folder / path).is_file() for folder in folders)] == []
