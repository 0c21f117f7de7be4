"""The benchmarks that the page of measurements names can be run."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if not path.stem.startswith("peer_"))  # they want other packages


def test_scripts_find_what_they_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    for path in SCRIPTS:
        assert runpy.run_path(str(path), run_name="imported")["__doc__"]


@pytest.mark.long
def test_a_rounds_time_is_told_by_parts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    monkeypatch.setattr(sys, "argv", ["sections.py", "--workloads", "H2", "--rounds", "2"])
    runpy.run_path(str(FOLDER / "sections.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    whole = float(lines[0].removeprefix("H2: ").partition(" ms")[0])
    parts = {line[:49].strip(): float(line[49:].split()[0]) for line in lines[1:] if line.startswith("    ")}
    assert sum(parts.values()) == pytest.approx(whole, abs=0.1)
    assert all(
        parts[name] > 0 for name in ("products: forward, backward, step", "gathering batches", "telling Lightning")
    )


@pytest.mark.parametrize("what", ["time", "memory"])
def test_asynchronous_rounds(what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--clients", "50", "--concurrency", "10", "--parameters", "100", "--rounds", "2"]
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    monkeypatch.setattr(sys, "argv", ["asynchronous.py", what, *options])
    runpy.run_path(str(FOLDER / "asynchronous.py"), run_name="__main__")
    assert "under way: 9; models held: " in capsys.readouterr().out


@pytest.mark.long
def test_measurements_for_a_gpu_go_on_where_they_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the CPU, where the script can be tried."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    options = ["clients", "--device", "cpu", "--output", str(tmp_path), "--workloads", "H2", "--each", "0.01"]
    (tmp_path / "card.json").write_text('{"needs H2": {"error": "none"}}')

    def run(*more: str) -> str:
        monkeypatch.setattr(sys, "argv", ["gpu.py", *options, *more])
        runpy.run_path(str(FOLDER / "gpu.py"), run_name="__main__")
        return capsys.readouterr().out

    assert "Measurements left: 1 of clients." in run("--cohorts", "2", "--seconds", "0")
    told = run("--cohorts", "2")
    assert "| H2 2 | " in told and "failed: card: needs H2: none" in told
    first = json.loads((tmp_path / "clients.json").read_text())
    assert first["H2 2"]["clients_a_round"] == 2
    assert first["H2 2"]["rounds"] == 3  # two are left out, one is profiled
    run("--cohorts", "2", "3")
    second = json.loads((tmp_path / "clients.json").read_text())
    assert second.keys() == {"H2 2", "H2 3"}
    assert second["H2 2"] == first["H2 2"]
