"""The recipe of asynchronous methods: runs what is missing, keeps what is finished, shows the readings of t."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_files import write_mnist

from fl_lightning.datamodules import FashionMNISTDataModule

RECIPE = Path(__file__).parents[2] / "recipes" / "fashion_async.py"


@pytest.mark.long
def test_all_curves_on_a_tiny_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    write_mnist(tmp_path, monkeypatch, FashionMNISTDataModule, 1000, 100)
    monkeypatch.setenv("COLUMNS", "140")
    command = f"{RECIPE} --seeds 3 --uploads 40 --data-dir {tmp_path} --output {tmp_path / 'out'}"
    for _ in range(2):
        monkeypatch.setattr(sys, "argv", command.split())
        runpy.run_path(str(RECIPE), run_name="__main__")
    [folder] = (tmp_path / "out").iterdir()
    results = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    assert sorted(results) == [
        "FedAsync-1.1-3",
        "FedAsync-1.2-3",
        "FedAsync-1.3-3",
        "FedAsync-1.4-3",
        "PAPAYA-1.4-3",
        "dynamic_weights-1.4-3",
    ]
    # two rounds of 20 uploads; the speeds tell when, the buffer of three how often the server moves
    ends = {name: result["curve"][-1] for name, result in results.items()}
    assert ends["FedAsync-1.1-3"]["time"] == pytest.approx(ends["dynamic_weights-1.4-3"]["time"])
    assert [ends[name]["moves"] for name in ("FedAsync-1.4-3", "dynamic_weights-1.4-3", "PAPAYA-1.4-3")] == [40, 13, 13]
    assert ends["PAPAYA-1.4-3"]["time"] > ends["FedAsync-1.1-3"]["time"]  # clients wait
    assert sum(results["FedAsync-1.1-3"]["contributions"].values()) == 40
    assert (folder / "accuracy.png").exists()
    assert (folder / "dynamic_weights-1.4-3.png").exists()
    printed = capsys.readouterr().out
    assert printed.count("FedAsync, experiment 1.1, seed 3") == 1
    # 40 uploads are neither 100 nor 300, and 13 moves are not 100
    lines = [line for line in printed.splitlines() if line.startswith("│ FedAsync") and "│ 1.1 " in line]
    assert len(lines) == 2
    for line in lines:
        assert [cell.strip() for cell in line.split("│")[4:-1]] == ["n/a"] * 3
    assert "n/a: not reached in a run of 40 uploads" in printed
    claims = [line for line in printed.splitlines() if line.startswith("│ PAPAYA") and "moves" in line]
    assert [cell.strip() for cell in claims[0].split("│")[3:-1]] == ["n/a"] * 3


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    return runpy.run_path(str(RECIPE))


CURVE = ("FedAsync", "1.4")


def of_seeds(*curves: list[tuple[int, int, float, float]]) -> dict[tuple[str, str], dict[int, dict[str, Any]]]:
    """Return results with points of uploads, moves, time and accuracy."""
    names = ("uploads", "moves", "time", "accuracy")
    points = [[dict(zip(names, point, strict=True)) for point in curve] for curve in curves]
    return {CURVE: {seed: {"curve": curve} for seed, curve in enumerate(points)}}


def test_a_figure_stands_under_a_count_that_was_reached(recipe: dict[str, Any]) -> None:
    results = of_seeds([(80, 40, 1, 0.25), (120, 60, 2, 0.5)], [(80, 70, 1, 0.125), (120, 90, 2, 0.75)])
    at = recipe["at"]
    assert at(results, CURVE, {"uploads": 80}) == [25, 12.5]
    assert at(results, CURVE, {"uploads": 100}) == [50, 75]  # the first point at or after it
    assert at(results, CURVE, {"moves": 60}) == [50, 12.5]
    assert at(results, CURVE, {"uploads": 121}) is None
    assert at(results, CURVE, {"moves": 61}) is None  # the first seed has not


def test_table_and_band_use_the_sample_standard_deviation(recipe: dict[str, Any], tmp_path: Path) -> None:
    # 10 and 20: mean 15, sample sd sqrt(50) = 7.07, population sd 5
    assert recipe["spread"]([10.0, 20.0]) == "15.0 ± 7.1"
    assert recipe["spread"]([10.0]) == "10.0"
    assert recipe["spread"](None) == "n/a"
    results = of_seeds([(20, 20, 1, 0.1), (40, 40, 2, 0.1)], [(20, 20, 1, 0.2), (40, 40, 2, 0.2)])
    [panel, *_] = drawn_by(recipe["draw_accuracies"], results, tmp_path / "a.png").axes
    [band] = panel.collections
    low, high = (function(band.get_paths()[0].vertices[:, 1]) for function in (min, max))
    assert (low, high) == pytest.approx((15 - 50**0.5, 15 + 50**0.5))


def drawn_by(function: Any, *arguments: Any) -> Any:
    """Call a function that saves a figure, and return the figure."""
    figures: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *rest, **options: figures.append(figure))
        function(*arguments)
    return figures[0]
