"""Reads the pages on results and the raw files that they name, and writes numbers as the pages do."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, stdev

DOCS = Path(__file__).parents[2] / "docs"
CLAIMS = "reproduction.md"


@cache
def rows_of(name: str) -> list[dict[str, str]]:
    """Return the rows of a raw file."""
    with (DOCS / "results" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def read(name: str) -> dict[str, list[float]]:
    """Return the columns of a raw file; a method that was stopped has fewer values."""
    rows = rows_of(name)
    return {column: [float(row[column]) for row in rows if row[column]] for column in rows[0]}


def text_of(page: str) -> str:
    """Return a page of the folder ``docs``."""
    return (DOCS / page).read_text(encoding="utf-8")


def cells(page: str, first: str) -> list[str]:
    """Return the further cells of a table's row."""
    [row] = re.findall(rf"^\| {re.escape(first)} \| (.*) \|$", text_of(page), re.MULTILINE)
    return [cell.strip() for cell in row.split("|")]


def claim(text: str) -> dict[str, str]:
    """Return the row of the table of claims that has a text in its first cell."""
    header, _, *rows = [line for line in text_of(CLAIMS).splitlines() if line.startswith("| ")]
    [row] = [row for row in rows if text in row.split(" | ")[0]]
    split = ([cell.strip() for cell in line.strip("|").split("|")] for line in (header, row))
    return dict(zip(*split, strict=True))


def signed(value: float, digits: int = 2) -> str:
    """Return a number with its sign."""
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def listed(texts: Iterable[str]) -> str:
    """Return texts as an enumeration."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def with_spread(values: Sequence[float], digits: int) -> str:
    """Return the mean and the standard deviation."""
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"
