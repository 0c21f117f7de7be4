"""Fills the tables of these pages, and of ``docs/results.md``, from the files in ``results``.

    python research/tables.py            # writes the tables
    python research/tables.py --check    # fails if a table is not that of its file

A comment ``<!-- table`` ... ``-->`` above a table has the lines of Python that make it: they assign a frame to `table`,
and may use the names of this module and of the page's earlier comments.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from fl_lightning.experiment import read_table
from fl_lightning.report.published import Pair, Score, published_score

HERE = Path(__file__).parent
TABLES = HERE.parent / "fl_lightning" / "recipes" / "tables"
PAGES = [*sorted(HERE.glob("*.md")), HERE.parent / "docs" / "results.md"]
BLOCK = re.compile(r"(<!-- table\n(.*?)\n-->\n\n)(?:\|[^\n]*\n)*\n*", re.DOTALL)


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
    """Return mean and standard deviation; the value alone if there is one."""
    return with_sd(Score(values.mean(), values.std(), len(values)), digits)


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


def published_runs() -> pd.DataFrame:
    """Return the fits of tables of other groups: a row for each, with its last score and its best one on test.

    The curves of fits of CIFAR-10 from before ``published.csv``, and those of PFLlib's table, are in files of their
    own. Of a fit that is there twice, the row is that with more rounds, or else that by torch's gradients.
    """
    rows = []
    for method, column in read("published_cifar10").set_index("round").items():
        rows.append(_run("published_cifar10", "CIFAR10-dir.5", method, 0, column.dropna()))
    for (method, seed), fit in read("published_pfllib").sort_values("round").groupby(["method", "seed"]):
        rows.append(_run("published_pfllib", "Fashion-dir.1", method, seed, fit["test_weighted"]))
    together = pd.concat([pd.DataFrame(rows), read("published")], ignore_index=True).sort_values(["rounds", "gradient"])
    return together.drop_duplicates(["table", "data", "method", "seed"], keep="last").sort_index(ignore_index=True)


def _run(table: str, data: str, method: object, seed: object, curve: pd.Series) -> dict[str, object]:
    """Return the row of a fit, of which `curve` has the score after each round."""
    return {
        "table": table,
        "data": data,
        "method": method,
        "seed": seed,
        "gradient": "torch",
        "rounds": len(curve),
        "last": curve.iloc[-1],
        "best_on_test": curve.max(),
    }


def published_pairs() -> list[tuple[Pair, str]]:
    """Return each published score of the tables with ours, in per cent, and the rounds of ours.

    A score that several tables have comes once, with the fits of most rounds.
    """
    found: dict[tuple[str, str, str], tuple[int, Pair, str]] = {}
    runs = published_runs()
    for path in sorted(TABLES.glob("published_*.yaml")):
        table = read_table(path)
        for data, settings in table.data.items():
            for source, entry in settings.published.items():
                planned = entry.get("rounds", table.trainer["max_epochs"])
                column = "best_on_test" if entry.get("select") == "best on test" else "last"
                for method, number in entry["scores"].items():
                    own = runs[(runs["table"] == table.name) & (runs["data"] == data) & (runs["method"] == method)]
                    key = (data, method, source)
                    done = 0 if own.empty else own["rounds"].min()
                    if key in found and done <= found[key][0]:
                        continue
                    there = published_score(number, entry.get("runs", 1))
                    scores = 100 * own[column]
                    here = None if own.empty else Score(scores.mean(), scores.std(), len(scores))
                    pair = Pair(data, method, source, entry.get("select"), here, there, done < planned)
                    found[key] = (done, pair, f"{done} of {planned}")
    return [(pair, rounds) for _, pair, rounds in found.values()]


def published_table() -> pd.DataFrame:
    """Return the published scores beside ours, as strings."""
    causes = read("published_causes").fillna("")
    rows = []
    for pair, rounds in published_pairs():
        met, why = verdict(pair, rounds, causes)
        rows.append(
            {
                "data": pair.data,
                "method": pair.method,
                "source": pair.source,
                "model": pair.select or "not said",
                "theirs": with_sd(pair.there),
                "here": "" if pair.here is None else with_sd(pair.here),
                "seeds": 0 if pair.here is None else pair.here.runs,
                "rounds": rounds,
                "error": "" if math.isnan(pair.error) else fixed(pair.error),
                "within two errors": met,
                "why not": why,
            }
        )
    return pd.DataFrame(rows).set_index("data")


def verdict(pair: Pair, rounds: str, causes: pd.DataFrame) -> tuple[str, str]:
    """Return whether a published score is met, ``"yes"``, ``"no"``, ``"open"`` or ``"not run"``, and why not.

    `causes` has why scores are not met, and which fits have other settings than theirs.
    """
    if pair.here is None:
        return "not run", ""
    if pair.has_fewer_rounds:
        return "open", f"{rounds} rounds"
    known = causes[(causes["data"] == pair.data) & causes["method"].isin([pair.method, ""])]
    deviations = known.loc[known["is_open"], "cause"]
    if len(deviations):
        return "open", deviations.iloc[0]
    if pair.is_met is None:
        return "open", "no standard deviation"
    if pair.is_met:
        return "yes", ""
    return "no", known["cause"].iloc[0] if len(known) else "not known"


def published_counts() -> pd.DataFrame:
    """Return how many published scores of each source are met."""
    table = published_table().reset_index()
    source = table["source"].str.split(",").str[0]
    columns = {"yes": "within two errors", "no": "not within", "open": "open", "not run": "not run"}
    counts = pd.crosstab(source, table["within two errors"]).reindex(columns=list(columns), fill_value=0)
    counts.loc["all"] = counts.sum()
    return counts.rename(columns=columns)


def with_sd(score: Score, digits: int = 2) -> str:
    """Return a score with its standard deviation, if that is known."""
    mean = fixed(score.mean, digits)
    return mean if math.isnan(score.sd) else f"{mean} ± {fixed(score.sd, digits)}"


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
        return f"{block[1]}{markdown(names['table'])}\n"

    return BLOCK.sub(fill, page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    pages = {page: filled(page) for page in PAGES}
    if "--check" in sys.argv:
        old = [page.name for page, text in pages.items() if text != page.read_text(encoding="utf-8")]
        sys.exit(f"Run python research/tables.py: {', '.join(old)} would change." if old else 0)
    for page, text in pages.items():
        page.write_text(text, encoding="utf-8")
