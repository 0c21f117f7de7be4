"""The benchmarks that the page of measurements names can be run."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
#: Those of FedJAX and pfl run in environments of their own.
SCRIPTS = sorted(set(FOLDER.glob("*.py")) - {FOLDER / "fedjax_rounds.py", FOLDER / "pfl_rounds.py"})


def test_scripts_find_what_they_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    for path in SCRIPTS:
        assert runpy.run_path(str(path), run_name="imported")["__doc__"]


@pytest.mark.long
def test_measurements_for_a_gpu_go_on_where_they_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the CPU, where the script can be tried."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    options = ["--device", "cpu", "--output", str(tmp_path), "--workloads", "H2", "--each", "0.01"]
    (tmp_path / "card.json").write_text('{"needs H2": {"error": "none"}}')

    def run(*more: str) -> str:
        monkeypatch.setattr(sys, "argv", ["gpu.py", *options, *more])
        runpy.run_path(str(FOLDER / "gpu.py"), run_name="__main__")
        return capsys.readouterr().out

    assert "left: 2 of card, 5 of rounds, 1 of clients, 3 of pfl." in run("--cohorts", "2", "--seconds", "0")
    told = run("clients", "--cohorts", "2")
    assert "\nH2 2 " in told and "failed: card: needs H2: none" in told
    first = json.loads((tmp_path / "clients.json").read_text())
    assert first["H2 2"]["clients_a_round"] == 2
    assert first["H2 2"]["rounds"] == 3  # two are left out, one is profiled
    run("clients", "--cohorts", "2", "3")
    second = json.loads((tmp_path / "clients.json").read_text())
    assert second.keys() == {"H2 2", "H2 3"}
    assert second["H2 2"] == first["H2 2"]
