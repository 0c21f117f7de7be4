"""Shipped tables and grids fit the classes that they name, and the recipes run."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.tiny_files import write_mnist

from fl_lightning.datamodules import FashionMNISTDataModule
from fl_lightning.experiment import Findings, check_table, read_table, run_table
from fl_lightning.experiment.plan import planned
from fl_lightning.report import experiment_report

RECIPES = Path(__file__).parents[2] / "fl_lightning" / "recipes"
TABLES = sorted((RECIPES / "tables").glob("*.yaml"))
# Of published_mnist_short and published_nvflare_short.
LEFT_OUT = {"FedProx", "FedNova", "FedOpt", "SCAFFOLD", "FedProx, kept momentum", "FedOpt, kept momentum"}
read_shipped = cache(read_table)


def run(*command: str, folder: Path, data: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FL_LIGHTNING_DATA": str(data or folder / "none")}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def run_table_of_package(*options: str, folder: Path, data: Path) -> subprocess.CompletedProcess[str]:
    done = run("-m", "fl_lightning.command", "run", *options, "--workers", "0", folder=folder, data=data)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.long
def test_dmoz_on_an_invented_dump_says_so(tmp_path: Path) -> None:
    words = ["music", "film", "chess", "soup", "physics", "the", "of", "page", "hockey", "law"]
    rng = np.random.default_rng(0)
    lines = [" ".join([word, *(f"{value:.3f}" for value in rng.normal(size=50))]) for word in words]
    (tmp_path / "data" / "glove").mkdir(parents=True)
    (tmp_path / "data" / "glove" / "glove.6B.50d.txt").write_text("\n".join(lines) + "\n")
    drawn = run(str(RECIPES / "dmoz_distributions.py"), "--invented", folder=tmp_path, data=tmp_path / "data")
    assert drawn.returncode == 0, drawn.stderr
    assert "STAND-IN: invented pages" in drawn.stdout
    figures = tmp_path / "runs" / "dmoz_distributions"
    assert {path.name for path in figures.iterdir()} == {"d_0", "d_100", "d_iid", "entropy.png"}
    done = run_table_of_package("dmoz_small", "--data", "d_iid", folder=tmp_path, data=tmp_path / "data")
    assert "STAND-IN d_iid: Invented pages" in done.stdout
    page = experiment_report(tmp_path / "runs" / "dmoz_small")
    assert "Stand-in data: d_iid. Invented pages" in page.read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.realdata
def test_radfeds_table_on_the_open_demo(real_data: Path, tmp_path: Path) -> None:
    options = ["--data", "eICU", "--methods", "FedAvg", "RADFed", "--seeds", "0"]
    done = run_table_of_package("radfed_small", *options, folder=tmp_path, data=real_data)
    assert "STAND-IN eICU" in done.stdout
    page = experiment_report(tmp_path / "runs" / "radfed_small")
    assert (page.parent / "tables" / "paper.csv").exists()


@pytest.mark.parametrize("ending", ["_small", pytest.param("", marks=pytest.mark.long, id="all")])
def test_tables_fit_the_signatures_of_what_they_name(ending: str) -> None:
    wrong = {}
    for path in (path for path in TABLES if path.stem.endswith(ending)):
        table = read_shipped(path)
        # a pre-trained model's weights would be downloaded
        findings = check_table(replace(table, values={**table.values, "weights": None}))
        # the papers' grids have values of S that do not divide the number of rounds
        others = [warning for warning in findings.warnings if "is not a multiple of `redistributions=" not in warning]
        if replace(findings, warnings=others) != Findings():
            wrong[path.stem] = findings
    assert wrong == {}


@pytest.mark.long
def test_personal_models_in_pfllibs_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path, monkeypatch, FashionMNISTDataModule, 160, 40)
    table = yaml.safe_load((TABLES[0].parent / "personal_fashion.yaml").read_text())
    arguments = table["data"]["Fashion-dir.1"]["datamodule"]["init_args"]
    arguments["data_dir"], arguments["download"] = str(tmp_path), False
    arguments["partitioner"]["init_args"] |= {"num_clients": 3, "min_partition_size": 20}
    changes = {"seeds": [0], "trainer": {"max_epochs": 1, "limit_train_batches": 1, "accelerator": "cpu"}}
    rows = run_table({**table, **changes}, tmp_path / "run", workers=0)
    assert [row["status"] for row in rows] == 8 * ["finished"]
    page = experiment_report(tmp_path / "run")
    assert "worse off than alone" in page.read_text(encoding="utf-8")
    assert (page.parent / "figures" / "gains-Fashion-dir.1.png").exists()


def test_published_numbers_are_of_methods_of_their_tables() -> None:
    found = set()
    for table in map(read_shipped, TABLES):
        for name, data in table.data.items():
            found |= {(table.name, name)} if data.published else set()
            for entry in data.published.values():
                assert set(entry["scores"]) <= set(table.methods) | LEFT_OUT
                for number in entry["scores"].values():
                    assert isinstance(number, float) or set(number) == {"score", "sd"}
    assert len(found) == 16


@pytest.mark.long
def test_cells_of_the_probe_are_cells_of_the_table_of_the_papers_length() -> None:
    # with its rate, mu and S they are found there, so that no fit is run twice
    of_rounds = {
        cell for entry in planned(read_table(RECIPES / "tables" / "radfed_rounds.yaml")) for cell in entry.fits
    }
    probe = read_table(RECIPES / "tables" / "radfed_probe.yaml")
    methods = ["FedAvg", "FedAvg-uniform", "FedProx", "FedProx-uniform", "RADFed"]
    searched = probe.only(data=["COVFEAT-G", "COVFEAT-L"], methods=methods)
    cells = {cell for entry in planned(searched) for cell in entry.fits}
    assert (len(cells), cells <= of_rounds) == (10, True)
