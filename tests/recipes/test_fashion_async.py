"""The recipe of asynchronous methods: runs what is missing, keeps what is finished, shows the readings of t."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
from helpers.tiny_files import write_mnist

from datamodules import FashionMNISTDataModule

RECIPE = Path(__file__).parents[2] / "recipes" / "fashion_async.py"


def test_all_curves_on_a_tiny_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    write_mnist(tmp_path, monkeypatch, FashionMNISTDataModule, 1000, 100)
    monkeypatch.setenv("COLUMNS", "140")
    command = f"{RECIPE} --seeds 3 --uploads 40 --data_dir {tmp_path} --out {tmp_path / 'out'}"
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
    assert "100 moves of the server" in printed
