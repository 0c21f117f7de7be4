"""Sweeps: their files, the local runner, and the shipped ones against the recipes' real options."""

from __future__ import annotations

import csv
import io
import json
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from fl_lightning.command import main
from fl_lightning.experiment import run_sweep
from fl_lightning.experiment.search import Range
from fl_lightning.experiment.sweep import Sweep, read_history

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "fl_lightning" / "recipes" / "sweeps").glob("*.yaml"))
PROGRAM = """
import argparse, pathlib, wandb
parser = argparse.ArgumentParser()
parser.add_argument("--output"), parser.add_argument("--x", type=float), parser.add_argument("--add", type=float)
options = parser.parse_args()
folder = pathlib.Path(options.output, str(options.x))
folder.mkdir(parents=True, exist_ok=True)
if options.x == 3:
    raise SystemExit("three is too many")
run = wandb.init(project="p", dir=folder)
if options.x >= 8:
    run.log({"score": float("nan")})
if options.x == 9:
    run.finish()
    raise SystemExit
run.log({"score": options.x + (options.add or 0), "name": "x" * 40000})
run.log({"score": 0.5})
run.finish()
"""


def write(folder: Path, **changes: Any) -> Path:
    (folder / "program.py").write_text(PROGRAM)
    content = {
        "name": "small",
        "program": "program.py",
        "method": "grid",
        "metric": {"name": "score", "goal": "maximize"},
        "parameters": {"output": {"value": "out"}, "x": {"values": [1, 2, 3]}},
    }
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({**content, **changes}, sort_keys=False))
    return path


def sweep(path: Path, **options: Any) -> tuple[list[dict[str, Any]], str]:
    """Run a sweep; return its rows and what was told."""
    console = Console(file=io.StringIO(), width=200)
    return run_sweep(path, console=console, **options), console.file.getvalue()  # type: ignore[attr-defined]


def test_a_program_that_is_not_there_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"`program` of .*sweep.yaml must be a script"):
        run_sweep(write(tmp_path, program="programm.py"))
    assert not Path("runs").exists()


@pytest.mark.long
def test_a_sweep_runs_offline_to_the_end_and_is_not_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path)
    rows, text = sweep(path, further=["--add=0.25"])
    assert [(row["values"]["x"], row["score"]) for row in rows] == [(1, 1.25), (2, 2.25), (3, None)]
    assert "1/3 finished: x=1: score 1.2500; about " in text
    assert "3/3 failed: x=3: RuntimeError: exit code 1: three is too many\n" in text
    assert "Best configuration: x=2 (score 2.2500)" in text
    assert "2 offline run folders; to send them: find out -name 'offline-run-*' -exec wandb sync {} +" in text
    written = list(csv.DictReader((tmp_path / "runs/sweeps/small/sweep.csv").open()))
    assert [json.loads(row["values"])["x"] for row in written] == [1, 2, 3]
    folders = sorted(tmp_path.rglob("offline-run-*"))
    assert len(folders) == 2
    assert {row["folder"] for row in rows if row["folder"]} == {str(f.relative_to(tmp_path)) for f in folders}
    again, text = sweep(path, further=["--add=0.25"], count=2)
    assert "1/2 finished: x=1: score 1.2500\n" in text
    assert [row["score"] for row in again] == [1.25, 2.25]
    assert sorted(tmp_path.rglob("offline-run-*")) == folders
    # also from another folder, and without the folders of the runs, which `wandb sync --clean` removes
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    kept = {"further": ["--add=0.25"], "count": 2, "output": tmp_path / "runs/sweeps/small"}
    assert sweep(path, **kept)[0] == again
    # another program has runs of its own
    (tmp_path / "other.py").write_text("raise SystemExit('another program')")
    others, _ = sweep(write(tmp_path, program="other.py"), **kept)
    assert [row["error"] for row in others] == ["RuntimeError: exit code 1: another program"] * 2


@pytest.mark.long
def test_history_across_blocks_and_of_a_run_that_was_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [[row], _] = sweep(write(tmp_path), count=1)
    [file] = Path(row["folder"]).glob("*.wandb")
    steps = read_history(file)
    # the first step is longer than a block of 32,768 bytes
    assert [step["score"] for step in steps] == [1.0, 0.5]
    assert steps[0]["name"] == "x" * 40000
    content = file.read_bytes()
    (tmp_path / "cut.wandb").write_bytes(content[: content.index(b"x" * 20000) + 30000])
    assert read_history(tmp_path / "cut.wandb") == []


def test_parameters_in_all_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parameters = {
        "a": {"value": 1},
        "b": {"values": ["x", "y"]},
        "c": {"min": 1, "max": 4},
        "d": {"min": 0.0, "max": 1.0},
        "e": {"distribution": "log_uniform_values", "min": 0.1, "max": 10},
        "f": {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.5},
    }
    sweep = Sweep(write(tmp_path, method="random", parameters=parameters), 1, further=["--more"])
    assert sweep.space == {
        "a": [1],
        "b": ["x", "y"],
        "c": Range(1, 4, integer=True),
        "d": Range(0.0, 1.0),
        "e": Range(0.1, 10, log=True),
        "f": Range(0, 1, step=0.5),
    }
    command = sweep.command({"a": 1, "b.c": "x"})
    assert command == [sys.executable, "program.py", "--a=1", "--b.c=x", "--more"]


@pytest.mark.long
def test_values_that_are_not_finite_are_never_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parameters = {"output": {"value": "out"}, "x": {"values": [9, 8, 1]}}
    path = write(tmp_path, parameters=parameters)
    for _ in range(2):  # the second call reads the files of the first
        rows, text = sweep(path)
        assert [(row["status"], row["score"]) for row in rows] == [("failed", None), ("finished", 8), ("finished", 1)]
        assert "1/3 failed: x=9: the validation metric is nan" in text
        assert "Best configuration: x=8 (score 8.0000)" in text
    assert len(list(tmp_path.rglob("offline-run-*"))) == 3


def test_bayes_without_optuna_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(RuntimeError, match="optuna"):
        run_sweep(write(tmp_path, method="bayes"), count=2)


@pytest.mark.long
def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", str(write(tmp_path)), "--count", "1", "--", "--add=1"]) == 0
    assert "Best configuration: x=1 (score 2.0000)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_sweeps_parse_against_the_recipes_options(path: Path) -> None:
    sweep = Sweep(path, 1)
    recipe = runpy.run_path(str(ROOT / "fl_lightning" / sweep.program_given))
    ends = [(entry.low, entry.high) if isinstance(entry, Range) else entry for entry in sweep.space.values()]
    for place in range(max(map(len, ends))):  # each value once
        point = {name: values[place % len(values)] for name, values in zip(sweep.space, ends, strict=True)}
        _, options = recipe["read_options"](sweep.command(point)[2:])
        for name, value in point.items():
            given = options.as_dict()
            if name == "method":
                assert given["method"]["class_path"] == f"fl_lightning.{value}"
                continue
            group, _, key = name.partition(".")
            entry = given[group]["init_args"][key] if group == "method" else given[group][key] if key else given[group]
            assert entry == value


@pytest.mark.long
@pytest.mark.parametrize("program", ["print('trained')", PROGRAM.replace('"score"', '"other"')])
def test_a_sweep_stops_at_a_program_that_does_not_log_the_metric(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path)
    (tmp_path / "program.py").write_text(program)
    with pytest.raises(RuntimeError, match="has not logged `score`"):
        sweep(path)
    [row] = csv.DictReader((tmp_path / "runs/sweeps/small/sweep.csv").open())
    assert row["status"] == "failed"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"program": ""}, "`program`"),
        ({"method": "best"}, "`method`"),
        ({"method": "random"}, "`count`"),
        ({"metric": {"name": "score", "goal": "max"}}, "`metric.goal`"),
        ({"metric": {"name": "score", "gaol": "maximize"}}, "'gaol'"),
        ({"parameter": {}}, "'parameter'"),
        ({"parameters": {"x": {"min": 1}}}, "`values`"),
        ({"parameters": {"x": {"min": 1, "max": 2, "distribution": "normal"}}}, "distribution`"),
        ({"parameters": {"x": {"min": 0.0, "max": 1.0}}}, "a range for x"),
        ({"parameters": {"x": {"values": [1], "min": 0, "max": 1}}}, "`values`"),
    ],
)
def test_wrong_files(tmp_path: Path, changes: dict[str, Any], name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        run_sweep(write(tmp_path, **changes))
