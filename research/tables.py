"""Fills the tables of these pages from the files in ``results``.

    python research/tables.py            # writes the tables
    python research/tables.py --check    # fails if a table is not that of its file

A comment ``<!-- table`` ... ``-->`` above a table has the lines of Python that make it: they assign a frame to `table`,
and may use the names of this module and of the page's earlier comments.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
BLOCK = re.compile(r"(<!-- table\n(.*?)\n-->\n\n)(?:\|[^\n]*\n)*", re.DOTALL)


def read(*names: str) -> pd.DataFrame:
    """Return the rows of some files of results."""
    files = [pd.read_csv(HERE / "results" / f"{name}.csv") for name in names]
    return pd.concat(files, ignore_index=True)


def fixed(value: float, digits: int = 2) -> str:
    """Return a number with some digits."""
    return f"{value:.{digits}f}"


def signed(value: float, digits: int = 2, unit: str = "") -> str:
    """Return a difference with its sign."""
    return f"{value:+.{digits}f}{unit}".replace("-", "\N{MINUS SIGN}")


def gain(ours: float, theirs: float) -> str:
    """Return how far a score is above another, in % of that."""
    return signed(100 * (ours / theirs - 1), unit=" %")


def spread(values: pd.Series, digits: int = 2) -> str:
    """Return mean and standard deviation."""
    return f"{values.mean():.{digits}f} ± {values.std():.{digits}f}"


def scores(
    *names: str, methods: Iterable[str], metric: str = "test_f1_clients", rows: str | list[str] = "fold"
) -> pd.DataFrame:
    """Return test scores in %: a row for each fold, say, and a column for each method."""
    table = read(*names).pivot_table(metric, rows, "method")
    return 100 * table[list(methods)]


def compared(scores: pd.DataFrame, mean: str = "") -> pd.DataFrame:
    """Return scores as strings, then those of RADFed relative to both FedAvgs'; `mean` names a row of means."""
    table = scores.map(fixed)
    if mean:
        table.loc[mean] = scores.apply(spread)
        scores = pd.concat([scores, scores.mean().to_frame(mean).T])
    table["RADFed to FedAvg"] = list(map(gain, scores["RADFed"], scores["FedAvg"]))
    table["to FedAvg-uniform"] = list(map(gain, scores["RADFed"], scores["FedAvg-uniform"]))
    return table


def markdown(table: pd.DataFrame) -> str:
    """Return a frame as a table of Markdown; its index is the first column."""
    table = table.rename_axis(columns=None).reset_index().astype(object).fillna("")
    header = list(table.columns)
    rows = [header, ["---"] * len(header), *table.values.tolist()]
    lines = []
    for row in rows:
        cells = " | ".join(str(value) for value in row)
        lines.append(f"| {cells} |\n")
    return "".join(lines)


def filled(page: Path) -> str:
    """Return the text of a page with its tables made again."""
    names = dict(globals())

    def fill(block: re.Match[str]) -> str:
        exec(block[2], names)
        return block[1] + markdown(names["table"])

    return BLOCK.sub(fill, page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    pages = {page: filled(page) for page in sorted(HERE.glob("*.md"))}
    if "--check" in sys.argv:
        old = [page.name for page, text in pages.items() if text != page.read_text(encoding="utf-8")]
        sys.exit(f"Run python research/tables.py: {', '.join(old)} would change." if old else 0)
    for page, text in pages.items():
        page.write_text(text, encoding="utf-8")
