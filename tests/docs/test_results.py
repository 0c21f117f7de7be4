"""Figures of the pages on results are those of the raw files that they name."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from statistics import mean

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def read(name: str) -> dict[str, list[float]]:
    """Return the columns of a raw file."""
    with (DOCS / "results" / name).open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {column: [float(row[column]) for row in rows] for column in rows[0]}


def cells(page: str, first: str) -> list[str]:
    """Return the further cells of a table's row."""
    text = (DOCS / page).read_text(encoding="utf-8")
    [row] = re.findall(rf"^\| {re.escape(first)} \| (.*) \|$", text, re.MULTILINE)
    return [cell.strip() for cell in row.split("|")]


@pytest.mark.parametrize("method", ["FedAvg", "FedAvg-uniform", "RADFed"])
def test_tenths_of_the_long_runs_are_those_of_the_raw_curves(method: str) -> None:
    curves = read("covfeat_l_20000.csv")
    assert curves["round"] == [100.0 * number for number in range(1, 201)]
    tenths = [mean(curves[method][start : start + 20]) for start in range(0, 200, 20)]
    assert cells("reproduction/radfed.md", f"{method}, tenths") == [f"{value:.3f}" for value in tenths]


def test_every_raw_file_is_linked_and_every_link_has_a_file() -> None:
    pages = [path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")]
    linked = {name for page in pages for name in re.findall(r"\((?:\.\./)*results/([^)]+)\)", page)}
    assert linked == {path.name for path in (DOCS / "results").iterdir()}


def test_every_claim_has_its_source_verdict_and_command() -> None:
    page = (DOCS / "reproduction.md").read_text(encoding="utf-8")
    header, _, *rows = [line for line in page.splitlines() if line.startswith("| ")]
    names = [cell.strip() for cell in header.strip("|").split("|")]
    assert names[:3] == ["claim", "source", "theirs"]
    for row in rows:
        claim = dict(zip(names, (cell.strip() for cell in row.strip("|").split("|")), strict=True))
        assert all(claim[name] for name in ("claim", "source", "here", "verdict", "command", "time", "seeds")), claim
