"""Results of an experiment, written by hand."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_lightning.experiment.files import write_json
from fl_lightning.report.results import Results, read_results

DATA = {
    "mode": "max",
    "monitor": "val_acc",
    "score": "test_acc",
    "stand_in": None,
    "validate_on_test": False,
    "smoothing": 1,
    "curves": [],
    "targets": [0.5],
    "paper": {"FedAvg": 50.0, "RADFed": 2.0},
    "published": {},
    "datamodule": {"class_path": "a.Data"},
    "model": {"class_path": "b.Model"},
}
# Two data sets, not in the order of the alphabet, with folds 0 and 1 and three seeds each. RADFed is better by 0.01 to
# 0.06 on the first, and worse on the second.
GAPS = {"soft": [1, 2, 3, 4, 5, 6], "hard": [-1, -1, -1, -1, -1, 0]}
BASE = {"soft": 0.5, "hard": 0.25}


def write_results(folder: Path, methods: Sequence[str] = ("FedAvg", "RADFed"), **data: Any) -> Results:
    """Write results by hand; the curve of a run has three rounds, validated in the second and third."""
    rows = []
    for name, gaps in GAPS.items():
        for method in methods:
            for run, gap in enumerate(gaps):
                cell = f"{name}-{method}-{run}"
                score = BASE[name] + (0.01 * gap if method == "RADFed" else 0)
                common = {"data": name, "method": method, "fold": run // 3, "seed": run % 3, "status": "finished"}
                rows.append(
                    {**common, "score": score, "rounds": 3, "partition": "abcdef0123", "code": "1", "cell": cell}
                )
                (folder / "cells" / cell).mkdir(parents=True)
                sent = 2 if method == "FedAvg" else 4
                (folder / "cells" / cell / "curve.csv").write_text(
                    "round,val_acc,fed/clients,fed/models_sent,fed/divergence\n"
                    f"1,,5,{5 * sent},0.1\n2,0.4,5,{10 * sent},0.2\n3,{score},5,{15 * sent},0.1\n"
                )
    rows.append(
        {"data": "hard", "method": "RADFed", "fold": 2, "seed": 0, "status": "failed", "error": "ValueError: x"}
    )
    columns = ["data", "method", "fold", "seed", "status", "score", "rounds", "partition", "code", "cell", "error"]
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    table = {
        "name": "By <hand>",
        "code": "1",
        "data": {name: {**DATA, **data} for name in GAPS},
        "methods": {"FedAvg": {}, "RADFed": {}, "Never": {}},
        "baseline": "FedAvg",
        "folds": [0, 1],
        "seeds": [0, 1, 2],
        "select": "best on validation",
        "among": "aggregated",
        "comparisons": {"Ease": ["soft", "hard"]},
    }
    write_json(folder / "table.json", table)
    return read_results(folder)
