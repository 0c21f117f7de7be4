"""The published numbers are those of settings that the tables have, and are compared by their spread."""

from __future__ import annotations

import csv
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from fl_lightning.experiment import read_table

RECIPES = Path(__file__).parents[2] / "recipes"
RECIPE = runpy.run_path(str(RECIPES / "published.py"))


@pytest.mark.parametrize(
    ("ours", "theirs", "sd", "said"),
    [
        ([99.0], 98.9, 0.05, "met: +0.10 points, 0.10 allowed"),
        ([99.1], 98.9, 0.05, "not met: +0.20 points, 0.10 allowed"),
        ([61.0], 62.0, None, "-1.00 points, no spread known"),
        # standard deviation 2 of 60, 62 and 64
        ([60.0, 62.0, 64.0], 66.0, None, "met: -4.00 points, 4.00 allowed"),
        # both: sqrt(2² + 1.5²) = 2.5
        ([60.0, 62.0, 64.0], 68.0, 1.5, "not met: -6.00 points, 5.00 allowed"),
    ],
)
def test_a_number_is_met_within_two_standard_deviations(
    ours: list[float], theirs: float, sd: float | None, said: str
) -> None:
    assert RECIPE["verdict"](ours, theirs + 1e-9 * (theirs < ours[0]), sd) == said


def test_every_published_number_has_its_source_and_its_setting() -> None:
    published = yaml.safe_load((RECIPES / "published.yaml").read_text())
    tables = [read_table(path) for path in RECIPE["PRESETS"].values()]
    settings = {(data, method) for table in tables for data in table.data for method in table.methods}
    for data, sources in published["numbers"].items():
        assert set(sources) <= set(published["sources"])
        assert {(data, method) for methods in sources.values() for method in methods} <= settings


def test_numbers_are_written_beside_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [
        {"data": "MNIST-dir.5", "method": "SCAFFOLD", "score": score, "rounds": 50} for score in (0.99, 0.991)
    ]
    rows += [{"data": "MNIST-dir.5", "method": "FedAvg", "score": "", "rounds": ""}]  # it failed
    with (tmp_path / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["data", "method", "score", "rounds"])
        writer.writeheader()
        writer.writerows(rows)
    with RECIPE["write_comparison"](tmp_path / "results.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [(row["method"], row["theirs"], row["ours"], row["runs"]) for row in written] == [
        ("SCAFFOLD", "99.0", "99.05", "2"),
        ("SCAFFOLD", "61.99", "99.05", "2"),
    ]
    # standard deviation 0.0707 of ours: 0.14 around Flower's 99.0; sqrt(1.4² + 0.0707²) around FedBench's
    assert written[0]["verdict"] == "met: +0.05 points, 0.14 allowed"
    assert written[1]["verdict"] == "not met: +37.06 points, 2.80 allowed"
    assert "MNIST-dir.5, SCAFFOLD: 99.05 here, 99.0 in Flower" in capsys.readouterr().out
