"""The recipe of all methods: runs what is missing, keeps what is finished."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "mnist_methods.py"


@pytest.mark.realdata
def test_finished_runs_are_kept(real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    arguments = "--seeds 0 --rounds 1 --redistributions 1 --local_epochs 1 --methods"
    monkeypatch.setenv("COLUMNS", "120")
    for methods in (["FedAvg"], ["FedAvg", "SCAFFOLD"]):
        command = [str(RECIPE), *arguments.split(), *methods, "--data_dir", str(real_data), "--out", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", command)
        runpy.run_path(str(RECIPE), run_name="__main__")
    folder = tmp_path / "r1-s1-e1"
    assert sorted(path.name for path in folder.iterdir()) == ["FedAvg-0.json", "SCAFFOLD-0.json", "divergence.png"]
    results = {name: json.loads((folder / f"{name}-0.json").read_text()) for name in ("FedAvg", "SCAFFOLD")}
    assert [results[name]["models_sent"] for name in ("FedAvg", "SCAFFOLD")] == [12, 24]
    assert capsys.readouterr().out.count("FedAvg, seed 0") == 1
