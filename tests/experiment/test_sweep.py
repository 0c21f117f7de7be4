"""Sweeps: their files, the local runner, and the shipped ones against the recipes' real options."""

from __future__ import annotations

import csv
import io
import json
import runpy
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import yaml
from helpers.written import assert_as_in, messages
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from rich.console import Console

from fl_lightning.command import main
from fl_lightning.experiment import run_sweep
from fl_lightning.experiment.sweep import Sweep

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "fl_lightning" / "recipes" / "sweeps").glob("*.yaml"))
PROGRAM = """
import argparse, csv, json, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float), parser.add_argument("--add", type=float, default=0)
parser.add_argument("--output", default="runs")
options = parser.parse_args()
folder = pathlib.Path(os.environ["FL_LIGHTNING_LOGS"], "version_0")
folder.mkdir(parents=True)
(folder / "environment.json").write_text(json.dumps({**os.environ}))
if "OFFLINE" in os.environ:
    for number in (1, 2):
        name = f"offline-run-{number}-{os.environ['WANDB_RUN_ID']}"
        pathlib.Path(options.output, "wandb", name).mkdir(parents=True)
scores = [options.x + options.add, "", 0.5]
if options.x >= 8:
    scores = ["nan", *scores]
if options.x == 9:
    scores = scores[:1]
with open(folder / "metrics.csv", "w", newline="") as file:
    csv.writer(file).writerows([["step", "score"], *enumerate(scores)])
if options.x == 3:
    raise SystemExit("three is too many")
"""
#: What the program does with Weights & Biases, too.
OFFLINE = """
import wandb
run = wandb.init(project="p", dir="runs")
run.log({"score": 100.0})
run.finish()
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(folder: Path, **changes: Any) -> Path:
    (folder / "program.py").write_text(PROGRAM)
    content = {
        "name": "small",
        "program": "program.py",
        "method": "grid",
        "metric": {"name": "score", "goal": "maximize"},
        "parameters": {"x": {"values": [1, 2, 3]}},
    }
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({**content, **changes}, sort_keys=False))
    return path


def sweep(path: Path, **options: Any) -> tuple[list[dict[str, Any]], str]:
    """Run a sweep; return its rows and what was told."""
    console = Console(file=io.StringIO(), width=200)
    return run_sweep(path, console=console, **options), console.file.getvalue()  # type: ignore[attr-defined]


def test_a_sweep_runs_to_the_end_and_is_not_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SERVICE", "of this process")
    path = write(tmp_path)
    rows, text = sweep(path, further=["--add=0.25"])
    outcomes = [
        ("finished", 1.25, ""),
        ("finished", 2.25, ""),
        ("failed", None, "RuntimeError: exit code 1: three is too many"),
    ]
    assert rows == [
        {"run": n, "status": status, "score": score, "values": {"x": n}, "id": ANY, "folder": "", "error": error}
        for n, (status, score, error) in enumerate(outcomes, start=1)
    ]
    # The program logs into a folder of its own, and with Weights & Biases offline, in a group with the others.
    logs = tmp_path / "runs/sweeps/small/cells" / rows[0]["id"] / "logs"
    environment = json.loads((logs / "version_0" / "environment.json").read_text())
    own = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_RUN_ID": rows[0]["id"], "WANDB_RUN_GROUP": "small"}
    assert {name: text for name, text in environment.items() if name.startswith("WANDB")} == own
    assert environment["FL_LIGHTNING_LOGS"] == str(logs)
    assert "1/3 finished: x=1: score 1.2500; about " in text
    assert "3/3 failed: x=3: RuntimeError: exit code 1: three is too many\n" in text
    assert "Best configuration: x=2 (score 2.2500)" in text
    assert text.endswith(f"\nAll runs: {tmp_path / 'runs/sweeps/small/sweep.csv'}\n")
    assert "wandb" not in text
    written = list(csv.DictReader((tmp_path / "runs/sweeps/small/sweep.csv").open()))
    texts = [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]
    assert written == [{**row, "values": json.dumps(value["values"])} for row, value in zip(texts, rows, strict=True)]
    again, text = sweep(path, further=["--add=0.25"])
    assert text.startswith("1/3 finished: x=1: score 1.2500\n2/3 finished: x=2: score 2.2500\n3/3 failed: ")
    assert [row["score"] for row in again] == [1.25, 2.25, None]
    # also from another folder, and without what the runs have logged
    kept = {"further": ["--add=0.25"], "count": 2, "output": tmp_path / "runs/sweeps/small"}
    for folder in kept["output"].glob("cells/*/logs"):
        shutil.rmtree(folder)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert sweep(path, **kept)[0] == again[:2]
    # another program has runs of its own
    (tmp_path / "other.py").write_text("print('another program')\nraise SystemExit(1)")
    others, _ = sweep(write(tmp_path, program="other.py"), **kept)
    assert [row["error"] for row in others] == ["RuntimeError: exit code 1: another program"] * 2


def test_the_smallest_value_is_the_best_if_the_goal_is_to_minimise(tmp_path: Path) -> None:
    [row], _ = sweep(write(tmp_path, metric={"name": "score", "goal": "minimize"}), count=1)
    assert row["score"] == 0.5  # of 1 and 0.5


@pytest.mark.parametrize(("further", "place"), [([], "runs"), (["--output=here"], "here")])
def test_the_newest_folder_of_weights_and_biases_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, further: list[str], place: str
) -> None:
    monkeypatch.setenv("OFFLINE", "yes")
    [row], text = sweep(write(tmp_path), count=1, further=further)
    assert row["folder"] == f"{place}/wandb/offline-run-2-{row['id']}"
    sync = f"find {place}/wandb -name 'offline-run-*' -exec wandb sync {{}} +"
    assert f"1 offline run folder; to send them: {sync}" in text
    _, text = sweep(write(tmp_path, parameters={"x": {"value": 1}, "output": {"values": ["a", "b"]}}, name=None))
    assert "2 offline run folders; to send them: find . -name 'offline-run-*'" in text
    assert (tmp_path / "runs/sweeps/sweep/sweep.csv").exists()


def test_what_only_the_service_uses_is_told_and_a_point_is_told_by_what_varies(tmp_path: Path) -> None:
    parameters = {"x": {"values": [1, 2]}, "add": {"value": 1}}
    metric = {"name": "score", "goal": "maximize", "target": 9}
    _, text = sweep(write(tmp_path, project="p", metric=metric, parameters=parameters), count=1)
    assert "Only the service of Weights & Biases uses `project` and `metric.target`: no effect here." in text
    assert "1/1 finished: x=1: score 2.0000\n" in text
    one = Sweep(write(tmp_path, parameters={"add": {"value": 1}}), 1)
    assert (one.describe({"add": 1}), one.describe({})) == ("add=1", "small")
    assert [cell.config for cell in one.cells({"add": 1}, 0)] == [
        {
            **{"sweep": "small", "program": "program.py", "metric": "score", "further": [], "values": {"add": 1}},
            "command": ["${env}", "${interpreter}", "${program}", "${args}"],
        }
    ]
    words = ["python", "-u", "${program}", "${args_no_hyphens}", "${args}"]
    # A program may be a command.
    command = Sweep(write(tmp_path, command=words, program="env"), 1, further=["--more"]).command({"a": 1, "b": "x"})
    assert command == [sys.executable, "-u", "env", "a=1", "b=x", "--a=1", "--b=x", "--more"]


def test_what_a_failed_attempt_has_logged_is_no_score(tmp_path: Path) -> None:
    path = write(tmp_path, parameters={"x": {"values": [3]}})
    assert sweep(path)[0][0]["score"] is None
    (tmp_path / "program.py").write_text(PROGRAM.replace("options.x == 3", "False").replace('"score"', '"other"'))
    with pytest.raises(RuntimeError, match="has not logged `score`"):
        sweep(path)


@pytest.mark.long
def test_runs_of_weights_and_biases_are_offline_and_in_one_group(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM + OFFLINE)
    rows, text = sweep(path, count=2)
    folders = sorted((tmp_path / "runs").rglob("offline-run-*"))
    assert [folder.name.rpartition("-")[2] for folder in folders] == [row["id"] for row in rows]
    assert [row["folder"] for row in rows] == [str(folder.relative_to(tmp_path)) for folder in folders]
    assert [row["score"] for row in rows] == [1, 2]  # that of the CSV file
    assert "2 offline run folders; to send them: find runs/" in text
    # `wandb sync --clean` removes the folders
    shutil.rmtree(folders[0].parent)
    assert sweep(path, count=2)[0] == rows


def test_parameters_in_all_forms(tmp_path: Path) -> None:
    parameters = {
        "a": {"value": 1},
        "b": {"values": ["x", "y"]},
        "c": {"min": 1, "max": 4},
        "d": {"min": 0.0, "max": 1.0},
        "e": {"distribution": "log_uniform_values", "min": 0.1, "max": 10},
        "f": {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.5},
        "g": {"distribution": "q_uniform", "min": 0, "max": 4},
    }
    sweep = Sweep(write(tmp_path, method="random", parameters=parameters), 1, further=["--more"])
    assert sweep.space == {
        "a": CategoricalDistribution([1]),
        "b": CategoricalDistribution(["x", "y"]),
        "c": IntDistribution(1, 4),
        "d": FloatDistribution(0.0, 1.0),
        "e": FloatDistribution(0.1, 10.0, log=True),
        "f": FloatDistribution(0.0, 1.0, step=0.5),
        "g": FloatDistribution(0.0, 4.0, step=1.0),
    }
    command = sweep.command({"a": 1, "b.c": "x"})
    assert command == [sys.executable, "program.py", "--a=1", "--b.c=x", "--more"]


def test_values_that_are_not_finite_are_never_the_best(tmp_path: Path) -> None:
    parameters = {"x": {"values": [9, 8, 1]}}
    path = write(tmp_path, parameters=parameters)
    for _ in range(2):  # the second call reads the files of the first
        rows, text = sweep(path)
        assert [(row["status"], row["score"]) for row in rows] == [("failed", None), ("finished", 8), ("finished", 1)]
        assert "1/3 failed: x=9: the validation metric is nan" in text
        assert "Best configuration: x=8 (score 8.0000)" in text


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write(tmp_path))
    assert main(["sweep", path, "--count", "2", "--output", "out", "--", "--add=1"]) == 0
    assert "Best configuration: x=2 (score 3.0000)" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "out" / "sweep.csv").exists()
    # The third run fails.
    assert main(["sweep", path]) == 1
    path = str(write(tmp_path, method="random", parameters={"x": {"min": 4.0, "max": 5.0}}))
    assert main(["sweep", path, "--count", "1", "--seed", "7"]) == 0
    [point] = Sweep(path, 1, 7).points
    assert f"1/1 finished: x={point['x']:.4g}: " in capsys.readouterr().out


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_sweeps_parse_against_the_recipes_options(path: Path) -> None:
    sweep = Sweep(path, 1)
    recipe = runpy.run_path(str(ROOT / "fl_lightning" / sweep.program_given))
    ends = [getattr(entry, "choices", None) or (entry.low, entry.high) for entry in sweep.space.values()]
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


WRONG: dict[str, dict[str, Any]] = {
    "no program": {"program": ""},
    "another program": {"program": "programm.py"},
    "a program without the metric": {"program": "silent.py"},
    "a method": {"method": "best"},
    "no count": {"method": "random"},
    "a goal": {"metric": {"name": "score", "goal": "max"}},
    "an entry of the metric": {"metric": {"name": "score", "gaol": "maximize"}},
    "no metric": {"metric": None},
    "no name of the metric": {"metric": {"goal": "maximize"}},
    "an entry": {"parameter": {}},
    "no parameters": {"parameters": None},
    "half of a range": {"parameters": {"x": {"min": 1}}},
    "a distribution": {"parameters": {"x": {"min": 1, "max": 2, "distribution": "normal"}}},
    "a bound": {"parameters": {"x": {"min": "1", "max": 2}}},
    "another bound": {"parameters": {"x": {"min": 1, "max": "2"}}},
    "a step": {"parameters": {"x": {"min": 1, "max": 2, "distribution": "q_uniform", "q": "x"}}},
    "a grid of a range": {"parameters": {"x": {"min": 0.0, "max": 1.0}}},
    "no values": {"parameters": {"x": {"values": []}}},
    "values and a range": {"parameters": {"x": {"values": [1], "min": 0, "max": 1}}},
}


def test_wrong_files(tmp_path: Path) -> None:
    def run(changes: dict[str, Any], folder: Path) -> object:
        (folder / "silent.py").write_text("print('trained')")
        return run_sweep(write(folder, **changes), output=folder / "out", console=Console(quiet=True))

    given = {name: partial(run_sweep, **{"path": write(tmp_path), name: 3}) for name in ("path", "output", "console")}
    calls = {name: partial(run, changes) for name, changes in WRONG.items()}
    lines = messages({**calls, **{name: lambda _, call=call: call() for name, call in given.items()}}, tmp_path / "all")
    assert_as_in(Path(__file__).with_name("test_sweep.txt"), lines, tmp_path)
