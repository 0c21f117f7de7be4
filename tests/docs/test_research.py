"""The tables of the research pages are those of their files, and their scripts can be imported."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESEARCH = ROOT / "research"


TABLES = runpy.run_path(str(RESEARCH / "tables.py"))


@pytest.mark.parametrize("page", TABLES["PAGES"], ids=lambda page: page.stem)
def test_tables_are_those_of_the_files(page: Path) -> None:
    assert TABLES["filled"](page) == page.read_text(encoding="utf-8")


def test_scripts_find_what_they_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(RESEARCH / "scripts")  # where Python looks when it runs one of them
    for path in sorted((RESEARCH / "scripts").glob("[!p]*.py")):  # `peer_*.py` want other packages
        assert runpy.run_path(str(path), run_name="imported")["__doc__"]
