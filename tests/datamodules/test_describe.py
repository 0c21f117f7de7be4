from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

import datamodules
import fl_lightning.partitioners
from datamodules.__main__ import classes_by_name, main
from datamodules.options import add_options
from fl_lightning.data import FederatedDataModule
from fl_lightning.partitioners import Partitioner

MODULES = classes_by_name(datamodules, FederatedDataModule)
PARTITIONERS = classes_by_name(fl_lightning.partitioners, Partitioner)
DIGITS = ["describe", "digits", "--partitioner", "dirichlet", "--num-clients", "10", "--alpha", "0.3"]


def row(name: str, output: str) -> str:
    [line] = [line for line in output.splitlines() if line.startswith(f"{name}  ")]
    return line.removeprefix(name).strip()


def test_table_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = ["--split", "sample", "--split-val", "0", "--split-test", "0.5", "--split-seed", "2"]
    assert main([*DIGITS, *split, "--seed", "4", "--output", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    # half of 1,797, rounded half to even, is the test set; floor(899 / 10) of the others for each client
    assert row("test", output) == "898 samples that belong to no client"
    assert row("samples of all clients", output) == "890"
    assert row("split", output).startswith("SampleSplit(val=0.0, test=0.5, seed=2")
    assert row("partitioner", output).startswith("DirichletPartitioner(num_clients=10, seed=4, alpha=0.3, ")
    assert row("training", output) == "10 clients, 890 samples"
    assert output.endswith(f"{tmp_path}/partition.png\n{tmp_path}/partition.html\n")
    assert {path.name for path in tmp_path.iterdir()} == {"partition.png", "partition.html"}


def test_every_module_and_partitioner_has_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"cifar10", "digits"} <= set(MODULES)
    assert {"dirichlet", "iid", "qp"} <= set(PARTITIONERS)
    for kind in [*MODULES.values(), *PARTITIONERS.values()]:
        add_options(argparse.ArgumentParser(), kind.__name__, kind)
    with pytest.raises(SystemExit) as exit_:
        main(["describe", "cifar10", "--partitioner", "qp", "--split", "client", "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    for name in ("arguments of QPPartitioner:", "arguments of CIFAR10DataModule:", "--split-num-folds"):
        assert name in text


def test_errors_name_the_argument(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    errors = [
        (["describe", "cifar"], 2, "'cifar'"),
        (["describe", "digits", "--partitioner", "iid"], 2, "--num-clients"),
        (["describe", "digits"], 1, "`partitioner`"),
        ([*DIGITS, "--seed", "-1"], 1, "`seed`"),
        (["describe", "cifar10", "--data-dir", str(tmp_path), "--no-download", *DIGITS[2:]], 1, str(tmp_path)),
    ]
    for arguments, expected, name in errors:
        try:
            status: object = main(arguments)
        except SystemExit as exit_:
            status = exit_.code
        assert status == expected
        assert name in capsys.readouterr().err


@pytest.mark.long
def test_it_is_a_command() -> None:
    command = [sys.executable, "-m", "datamodules", *DIGITS]
    finished = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert row("clients", finished.stdout) == "10"


@pytest.mark.realdata
def test_cifar10(real_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--partitioner", "dirichlet", "--num-clients", "100", "--alpha", "0.3", "--output", str(tmp_path)]
    assert main(["describe", "cifar10", "--data-dir", str(real_data), *options]) == 0
    assert row("mean size", capsys.readouterr().out) == "600.0"
