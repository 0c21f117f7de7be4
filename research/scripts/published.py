"""Adds the fits of tables of other groups, and their curves, to the results, and draws their agreement.

    fl-lightning run published_flute --output runs/published_flute
    python research/scripts/published.py runs/published_flute
    python research/tables.py

A fit that is there already is replaced. `gradient` is `c++` for fits of the network of `niid_network.py`.
"""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from fl_lightning.experiment.files import read_json
from fl_lightning.report.drawing import style
from fl_lightning.report.results import read_results

RESEARCH = Path(__file__).parents[1]
RESULTS = RESEARCH / "results" / "published.csv"
CURVES = RESEARCH / "results" / "published_curves.csv"
PICTURE = RESEARCH / "images" / "published.png"
KEYS = ["table", "data", "method", "seed", "gradient"]


def fits(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the finished fits of a folder, and their scores after each round.

    The fits have a row each, with the last score and the best one on the test set.
    """
    results = read_results(folder)
    rows = []
    curves = []
    for run in results.scored.to_dict("records"):
        settings = results.table["data"][run["data"]]
        metrics = pd.read_csv(folder / "cells" / run["cell"] / "curve.csv", index_col="round")
        curve = metrics[settings["monitor"]].dropna()
        is_compiled = settings["model"]["class_path"].startswith("niid_network.")
        key = {
            "table": results.table["name"],
            "data": run["data"],
            "method": run["method"],
            "seed": run["seed"],
            "gradient": "c++" if is_compiled else "torch",
        }
        curves += [{**key, "round": number, "score": round(score, 4)} for number, score in curve.items()]
        rows.append(
            {
                **key,
                "rounds": int(run["rounds"]),
                "last": curve.iloc[-1],
                "best_on_test": curve.max(),
                "seconds": read_json(folder / "cells" / run["cell"] / "run.json")["seconds"],
                "code": run["code"],
            }
        )
    return pd.DataFrame(rows), pd.DataFrame(curves)


def add(path: Path, found: list[pd.DataFrame], order: list[str]) -> None:
    """Add rows of fits to a file, in place of all rows of the same fits."""
    new = pd.concat(found)
    if path.exists():
        known = pd.read_csv(path)
        is_new = known.set_index(KEYS).index.isin(new.set_index(KEYS).index)
        new = pd.concat([known[~is_new], new])
    new.sort_values(order).to_csv(path, index=False)


def draw() -> Figure:
    """Draw our scores over theirs, where they are met or not, with a standard error where one is known."""
    tables = runpy.run_path(str(RESEARCH / "tables.py"))
    causes = tables["read"]("published_causes").fillna("")
    verdict = tables["verdict"]
    pairs = [pair for pair, rounds in tables["published_pairs"]() if verdict(pair, rounds, causes)[0] in ("yes", "no")]
    figure = Figure(figsize=(4.6, 4.2))
    axes = figure.subplots()
    sources = list(dict.fromkeys(pair.source.split(",")[0] for pair in pairs))
    for place, source in enumerate(sources):
        label = source
        for pair in pairs:
            if pair.source.split(",")[0] != source:
                continue
            axes.errorbar(
                pair.there.mean,
                pair.here.mean,
                xerr=None if pd.isna(pair.there.error) else pair.there.error,
                yerr=None if pd.isna(pair.here.error) else pair.here.error,
                color=f"C{place}",
                marker="o",
                markersize=4,
                linewidth=1.0,
                linestyle="",
                label=label,
            )
            label = "_"
    axes.axline((0, 0), slope=1, color="0.6", linewidth=0.8, zorder=0)
    axes.set(xlabel="published, %", ylabel="here, %", xlim=(0, 102), ylim=(0, 102))
    axes.legend(loc="upper left")
    return figure


def main() -> None:
    """Add the fits of the folders, and draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of finished tables")
    folders = parser.parse_args().folders
    found = [fits(folder) for folder in folders]
    if found:
        add(RESULTS, [rows for rows, _ in found], KEYS)
        add(CURVES, [curves for _, curves in found], [*KEYS, "round"])
    with style():
        figure = draw()
        figure.savefig(PICTURE, dpi=130, bbox_inches="tight", metadata={"Software": None})


if __name__ == "__main__":
    main()
