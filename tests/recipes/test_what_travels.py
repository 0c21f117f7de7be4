"""The recipe of what travels: runs what is missing, keeps what is finished, shows tables and figures."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny_files import write_mnist

from fl_lightning.datamodules import FashionMNISTDataModule

RECIPE = Path(__file__).parents[2] / "recipes" / "what_travels.py"


def run(folder: Path, study: str, seeds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    command = f"{RECIPE} {study} --seeds {seeds} --rounds 2 --data-dir {folder} --output {folder / 'out'}"
    monkeypatch.setattr(sys, "argv", command.split())
    runpy.run_path(str(RECIPE), run_name="__main__")


def test_a_study_on_a_tiny_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    write_mnist(tmp_path, monkeypatch, FashionMNISTDataModule, 1000, 100)
    run(tmp_path, "compression", "3", monkeypatch)
    folder = tmp_path / "out" / "compression-small-2"
    kept = {path.stem: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    assert len(kept) == 8
    plain, signs = (json.loads((folder / f"{name}-3.json").read_text()) for name in ("FedAvg", "SignSGD"))
    assert [point["round"] for point in plain["curve"]] == [1, 2]
    # ten clients in each of two rounds, 50,890 parameters of four bytes, or of a bit and one scale
    assert plain["curve"][-1]["bytes"] == 20 * 50_890 * 4
    assert signs["curve"][-1]["bytes"] == 20 * (50_890 + 32) / 8
    run(tmp_path, "compression", "3", monkeypatch)
    assert {path.stem: path.stat().st_mtime_ns for path in folder.glob("*.json")} == kept
    assert (folder / "compression.png").exists()
    printed = capsys.readouterr().out
    assert "compression: Fashion-MNIST, 100 clients, 2 rounds, test accuracy in %" in printed
    assert "SignSGD" in printed


@pytest.mark.long
@pytest.mark.parametrize(("study", "settings"), [("privacy", 7), ("robustness", 35)])
def test_the_other_studies_on_a_tiny_set(
    study: str, settings: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path, monkeypatch, FashionMNISTDataModule, 2000, 100)
    run(tmp_path, study, "0 1", monkeypatch)
    assert len(list((tmp_path / "out" / f"{study}-small-2").glob("*.json"))) == 2 * settings
    assert (tmp_path / "out" / f"{study}-small-2" / f"{study}.png").exists()
