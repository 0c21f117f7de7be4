"""The main recipe as a user runs it, on the stand-in data and with small settings."""

from __future__ import annotations

import csv
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import yaml
from helpers.wandb_files import read_history, read_records
from torchvision.models import mobilenet_v2

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "fl_lightning" / "recipes" / "cifar_radfed.py"
SMALL = [
    "--partitioner.num_clients=20",
    "--partitioner.search=1000",
    "--partitioner.burn_in=1000",
    "--method.redistributions=2",
    "--method.clients_per_round=2",
    "--trainer.check_val_every_n_epoch=1",
    "--trainer.enable_progress_bar=false",
]


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the recipe in ``folder``, where there are no data, with no way out."""
    # without W&B's own variables: they name the service of this process, which writes where this process is
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    env.update({"OMP_NUM_THREADS": "1", "COLUMNS": "200", "WANDB_MODE": "offline", "TORCH_HOME": str(folder)})
    # a proxy that refuses at once stands for a machine without network
    env.update({name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")})
    for name in ("FL_LIGHTNING_DATA", "no_proxy", "NO_PROXY"):
        env.pop(name, None)
    command = [sys.executable, str(ROOT / "recipes" / "cifar_radfed.py"), *options]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.long
def test_falls_back_on_digits_and_says_so_and_resumes(tmp_path: Path) -> None:
    # two fresh runs with "auto" may choose differently, and bits are compared below
    options = [*SMALL, "--method.executor=sequential"]
    finished = run(tmp_path, *options, "--trainer.max_epochs=3")
    assert finished.returncode == 0, finished.stderr
    assert "STAND-IN DATA" in finished.stdout
    assert "This run does not use CIFAR-10" in finished.stdout
    folder = tmp_path / "runs" / "cifar_radfed" / "digits-standin-radfed-seed1"
    [row] = list(csv.DictReader((folder / "results.csv").open()))
    assert row["data set"] == "digits-standin"
    assert (row["rounds"], row["aggregations"], row["models sent"]) == ("3", "1", "12")
    assert 0.0 <= float(row["test acc (clients)"]) <= 1.0
    made = {"run.png", "partition.png", "partition.html", "partition.csv", "config.yaml", "last.ckpt", "wandb", "log-1"}
    assert made <= {p.name for p in folder.iterdir()}
    assert str(folder.relative_to(tmp_path)) in finished.stdout

    resumed = run(tmp_path, "--trainer.max_epochs=4", f"--resume={folder}")
    assert resumed.returncode == 0, resumed.stderr
    assert [row["rounds"] for row in csv.DictReader((folder / "results.csv").open())] == ["3", "4"]
    # both starts are one run of Weights & Biases, without the bar's many states, and the hint names a folder that is
    first, second = sorted((folder / "wandb").glob("offline-run-*"))
    assert first.name[-8:] == second.name[-8:]
    assert f"wandb sync {first.relative_to(tmp_path)}\n" in finished.stdout
    assert not list(read_records(next(first.glob("*.wandb")), "output_raw"))
    rounds = [
        row["round"] for path in (first, second) for row in read_history(next(path.glob("*.wandb"))) if "val_acc" in row
    ]
    assert rounds == [1, 2, 3, 4]
    whole = run(tmp_path, *options, "--trainer.max_epochs=4")
    assert whole.returncode == 0, whole.stderr
    other = folder.with_name("digits-standin-radfed-seed1-2")
    weights = [torch.load(f / "last.ckpt", weights_only=True)["state_dict"] for f in (folder, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.long
def test_two_processes_write_one_run(tmp_path: Path) -> None:
    parallel = ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.accelerator=cpu"]
    options = ["--dataset=digits", *SMALL, "--method.executor=sequential", "--trainer.max_epochs=2"]
    finished = [run(tmp_path, *options, "--output=one"), run(tmp_path, *options, *parallel, "--output=two")]
    assert [process.returncode for process in finished] == [0, 0], finished[1].stderr
    rows = [
        next(csv.DictReader((tmp_path / name / "digits-radfed-seed1/results.csv").open())) for name in ("one", "two")
    ]
    assert rows[0] == rows[1]
    assert len(list((tmp_path / "two").glob("*"))) == len(list((tmp_path / "two").rglob("offline-run-*"))) == 1


@pytest.mark.parametrize("folder", ["weights", "."])
def test_data_dir_has_the_weights_too(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FL_LIGHTNING_DATA", "nowhere")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    place = tmp_path / folder / "mobilenet_v2-b0353104.pth"
    place.parent.mkdir(exist_ok=True)
    state = mobilenet_v2(weights=None).state_dict()
    torch.save(state, place)
    recipe = runpy.run_path(str(RECIPE))
    monkeypatch.setattr(recipe["CIFAR10DataModule"], "prepare_data", lambda data: None)
    choose_data = recipe["choose_data"]

    def choose(*arguments: Any) -> NoReturn:
        _, _, model = choose_data(*arguments)
        raise EOFError(model)

    monkeypatch.setitem(recipe["main"].__globals__, "choose_data", choose)
    with pytest.raises(EOFError) as ended:
        recipe["main"](["--dataset=cifar10", f"--data-dir={tmp_path}", *SMALL])
    assert torch.equal(ended.value.args[0].prefix.layers[1][0].weight, state["features.0.0.weight"])


@pytest.mark.long
def test_cifar10_by_name_has_no_fallback(tmp_path: Path) -> None:
    finished = run(tmp_path, "--dataset=cifar10", *SMALL)
    assert finished.returncode == 1
    assert "cifar-10-batches-py" in finished.stdout
    assert not (tmp_path / "runs").exists()


def test_presets_parse_against_the_real_signatures() -> None:
    parser = runpy.run_path(str(RECIPE))["make_parser"]()
    for preset in sorted((RECIPE.parent / "presets").glob("*.yaml")):
        resolved = yaml.safe_load(parser.dump(parser.parse_args(["--config", str(preset)])))
        given = yaml.safe_load(preset.read_text())
        for group in ("data", "model", "trainer", "split"):
            assert given[group].items() <= resolved[group].items()
