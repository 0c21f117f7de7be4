"""Shipped tables and grids fit the classes that they name, and the recipes run."""

from __future__ import annotations

import hashlib
import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from fl_lightning.experiment import Findings, check_table, read_table
from fl_lightning.experiment.plan import planned

RECIPES = Path(__file__).parents[2] / "recipes"
TABLES = sorted((RECIPES / "tables").glob("*.yaml"))
# number of cells and a hash of their ids: another id means that users' finished cells are not found any more
CELLS = {
    "dmoz_paper": (9, "cc50d9de9219c371"),
    "dmoz_small": (5, "3d95b89a5ebe2a9c"),
    "feddyn_cifar": (8, "cbcd73540465e12e"),
    "feddyn_cifar_short": (4, "a1a0b26c61751cb2"),
    "feddyn_paper": (172, "e3eb2ff4cb01017e"),
    "feddyn_reduced": (100, "45cc6ea8a5931e6c"),
    "feddyn_small": (64, "4ab471b1c7a6d4a2"),
    "mnist_methods": (39, "c16f547e43e10a22"),
    "published_cifar10": (12, "1b492a5c21769c83"),
    "published_mnist": (12, "d64d2c7787ae22bc"),
    "published_mnist_short": (2, "b9ca159ab60c2d38"),
    "published_nvflare": (48, "76d19c955ec45cde"),
    "radfed_long": (48, "a6973e0188bda342"),
    "radfed_paper": (2403, "52830e35b1407210"),
    "radfed_probe": (28, "cf3bb2dcb5c38b66"),
    "radfed_reduced": (741, "12dd0faa36ed177a"),
    "radfed_rounds": (305, "b69edf81f99327f9"),
    "radfed_small": (309, "5f4580850703b447"),
    "radfed_steps": (48, "0d92bef2efc7f722"),
    "radfed_steps_short": (24, "6d4f84d658996b47"),
}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_tables_fit_the_signatures_of_what_they_name(path: Path) -> None:
    table = read_table(path)
    # a pre-trained model's weights would be downloaded
    findings = check_table(replace(table, values={**table.values, "weights": None}))
    assert replace(findings, warnings=[]) == Findings()
    # the papers' grids have values of S that do not divide the number of rounds
    assert all("is not a multiple of `redistributions=" in warning for warning in findings.warnings)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_ids_of_cells_stay_as_they_are(path: Path) -> None:
    ids = sorted({name for entry in planned(read_table(path)) for name in entry.cells})
    assert (len(ids), hashlib.sha256(" ".join(ids).encode()).hexdigest()[:16]) == CELLS[path.stem]


def test_tables_are_shipped_for_both_presets() -> None:
    names = {path.stem for path in TABLES}
    assert names >= {f"{recipe}_{p}" for recipe in ("radfed", "feddyn", "dmoz") for p in ("small", "paper")}
    paper = read_table(RECIPES / "tables" / "radfed_paper.yaml")
    assert (len(paper.data), len(paper.methods), len(paper.folds), len(paper.seeds)) == (9, 12, 5, 3)
    small = read_table(RECIPES / "tables" / "radfed_small.yaml")
    assert (list(small.data), list(small.methods)) == (list(paper.data), list(paper.methods))


def test_reduced_tables_search_each_methods_key_parameter() -> None:
    reduced = read_table(RECIPES / "tables" / "radfed_reduced.yaml")
    assert (len(reduced.data), len(reduced.methods), reduced.folds, reduced.seeds) == (9, 10, [0, 1], [0, 1, 2])
    counted = {
        entry.method: entry.num_points for entry in planned(reduced.only(data=["MNIST-1"])) if entry.num_points > 1
    }
    # 3 learning rates, 6 mu, 3 mixing rates x 2 forms of staleness, 4 server rates, 3 S, 5 gamma
    uniform = {"FedAvg-uniform": 3, "FedProx-uniform": 6, "FedAdapt-uniform": 4}
    assert counted == {"FedAvg": 3, **uniform, "FedAsync": 6, "RADFed": 3, "RADFedi": 5}
    feddyn = read_table(RECIPES / "tables" / "feddyn_reduced.yaml")
    assert sum(name.startswith("synthetic") for name in feddyn.data) == 5
    assert sum("MNIST" in name for name in feddyn.data) == 20
    assert feddyn.data["synthetic-both"].trainer["max_epochs"] == 500


@pytest.mark.parametrize("name", ["radfed_paper", "radfed_rounds", "radfed_steps"])
def test_every_method_has_a_learning_rate_of_its_own(name: str) -> None:
    table = read_table(RECIPES / "tables" / f"{name}.yaml")
    assert all("lr" in method.tune and "lr" not in method.take for method in table.methods.values())


@pytest.mark.parametrize("method", ["FedAvg", "FedProx", "FedAdapt"])
def test_baselines_weigh_clients_by_size_and_alike(method: str) -> None:
    methods = read_table(RECIPES / "tables" / "radfed_paper.yaml").methods
    by_size, alike = methods[method], methods[f"{method}-uniform"]
    assert by_size.callback["init_args"] == {**alike.callback["init_args"], "weighting": "samples"}
    assert (alike.callback["init_args"]["weighting"], by_size.tune) == ("uniform", alike.tune)


def test_radfeds_tables_of_the_papers_length() -> None:
    rounds = read_table(RECIPES / "tables" / "radfed_rounds.yaml")
    expected = {"COVFEAT-G": 20000, "COVFEAT-L": 20000, "MNIST-1": 450, "MNIST-0.1": 450, "Cifar10": 1500}
    assert {name: data.trainer["max_epochs"] for name, data in rounds.data.items()} == expected
    assert [rounds.data[name].values["E"] for name in ("MNIST-1", "MNIST-0.1")] == [10, 10]
    assert rounds.data["Cifar10"].model["init_args"]["image_size"] == 128
    assert (rounds.folds, rounds.seeds, rounds.tuning.max_epochs) == ([0, 1, 2, 3, 4], [0], None)
    # cells of the probe, with its rate, mu and S, are cells of the long table where that searches them itself
    of_rounds = {cell for entry in planned(rounds) for cell in entry.cells}
    probe = read_table(RECIPES / "tables" / "radfed_probe.yaml")
    methods = ["FedAvg", "FedAvg-uniform", "FedProx", "FedProx-uniform", "RADFed"]
    searched = probe.only(data=["COVFEAT-G", "COVFEAT-L"], methods=methods)
    cells = {cell for entry in planned(searched) for cell in entry.cells}
    assert (len(cells), cells <= of_rounds) == (10, True)


def test_feddyns_table_is_as_in_the_authors_code() -> None:
    paper = read_table(RECIPES / "tables" / "feddyn_paper.yaml")
    cifar = [entry.datamodule["init_args"] for name, entry in paper.data.items() if name.startswith("CIFAR10-")]
    constants = {"mean": [0.491, 0.482, 0.447], "std": [0.247, 0.243, 0.262], "augment": True, "crop_probability": 0.5}
    assert len(cifar) == 11
    assert all(constants.items() <= arguments.items() for arguments in cifar)
    assert all(method.callback["init_args"]["evaluate"] == "all" for method in paper.methods.values())
    part = read_table(RECIPES / "tables" / "feddyn_cifar.yaml")
    assert list(part.data) == ["CIFAR10-iid-10%-100", "CIFAR10-dir.3-10%-100"]
    assert (list(part.methods), part.trainer["max_epochs"], part.values["E"]) == (list(paper.methods), 200, 5)


def test_grids_hold_the_papers_values() -> None:
    grid = yaml.safe_load((RECIPES / "grids" / "xue2021.yaml").read_text())
    assert grid["S"] == [10, 15, 20, 22, 25, 28, 30, 50, 80, 100, 120]
    assert grid["gamma"] == [0.6, 0.7, 0.8, 0.9, 0.95]
    assert grid["mu"] == grid["rho"] == [10.0**-k for k in (2, 4, 6, 8, 10, 12)]
    assert (grid["eta"], grid["tau"]) == ([0.1, 0.01, 0.001, 0.0001], [1e-2, 1e-4, 1e-8])
    assert (grid["v0"], grid["mixing"]) == ([0.0, 0.1, 0.01, 0.001], [0.3, 0.6, 0.9])
    # alpha of Acar et al., powers of ten
    assert yaml.safe_load((RECIPES / "grids" / "acar2021.yaml").read_text())["alpha"] == [0.1, 0.01, 0.001]


def run(recipe: str, folder: Path, *options: str, data: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FL_LIGHTNING_DATA": str(data or folder / "none")}
    command = [sys.executable, str(RECIPES / recipe), *options]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.long
def test_feddyn_says_what_it_would_do_and_how_long(tmp_path: Path) -> None:
    names = ["synthetic-homogeneous", "MNIST-iid-10%"]
    done = run("feddyn_communication.py", tmp_path, "--estimate", "--methods", "FedDyn", "SCAFFOLD", "--data", *names)
    assert done.returncode == 0, done.stderr
    assert "synthetic-homogeneous, SCAFFOLD: 2 fits; 120 rounds; 0 finished" in done.stdout
    assert "Measured seconds a round: synthetic-homogeneous" in done.stdout
    assert "CANNOT RUN MNIST-iid-10%" in done.stdout
    assert not (tmp_path / "runs" / "feddyn_small").exists()


@pytest.mark.long
def test_dmoz_on_an_invented_dump_says_so(tmp_path: Path) -> None:
    words = ["music", "film", "chess", "soup", "physics", "the", "of", "page", "hockey", "law"]
    rng = np.random.default_rng(0)
    lines = [" ".join([word, *(f"{value:.3f}" for value in rng.normal(size=50))]) for word in words]
    (tmp_path / "data" / "glove").mkdir(parents=True)
    (tmp_path / "data" / "glove" / "glove.6B.50d.txt").write_text("\n".join(lines) + "\n")
    done = run("dmoz_distributions.py", tmp_path, "--data", "d_iid", "--workers", "0", data=tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert "STAND-IN d_iid: Invented pages" in done.stdout
    report = tmp_path / "runs" / "dmoz_small" / "report"
    assert "Stand-in data: d_iid. Invented pages" in (report / "report.html").read_text()
    assert (report / "spread.png").exists()
    assert (report / "entropy.png").exists()


@pytest.mark.long
def test_dmoz_without_vectors_says_what_is_missing(tmp_path: Path) -> None:
    done = run("dmoz_distributions.py", tmp_path)
    assert done.returncode == 2
    assert "glove.6B.50d.txt" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.realdata
def test_radfeds_table_on_the_open_demo(real_data: Path, tmp_path: Path) -> None:
    options = ["--data", "eICU", "--methods", "FedAvg", "RADFed", "--seeds", "0", "--workers", "0"]
    done = run("radfed_table.py", tmp_path, *options, data=real_data)
    assert done.returncode == 0, done.stderr
    assert "STAND-IN eICU" in done.stdout
    assert (tmp_path / "runs" / "radfed_small" / "report" / "tables" / "paper.csv").exists()


@pytest.mark.parametrize(
    ("recipe", "names"),
    [
        ("radfed_table", ["small", "reduced", "long", "probe", "steps_short", "steps", "rounds", "paper"]),
        ("feddyn_communication", ["small", "reduced", "cifar_short", "cifar", "paper"]),
        ("dmoz_distributions", ["small", "paper"]),
    ],
)
def test_presets_are_files(recipe: str, names: list[str]) -> None:
    presets = runpy.run_path(str(RECIPES / f"{recipe}.py"))["PRESETS"]
    assert list(presets) == names
    for path in presets.values():
        assert read_table(path).name == path.stem
