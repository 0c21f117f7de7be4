from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import datamodules
import fl_lightning.partitioners
from datamodules.__main__ import classes_by_name, main
from fl_lightning.data import FederatedDataModule
from fl_lightning.partitioners import Partitioner

MODULES = classes_by_name(datamodules, FederatedDataModule)
PARTITIONERS = classes_by_name(fl_lightning.partitioners, Partitioner)
DIGITS = ["describe", "digits", "--partitioner", "dirichlet", "--num-clients", "10", "--alpha", "0.3"]


def row(name: str, output: str) -> str:
    [line] = [line for line in output.splitlines() if line.startswith(f"{name}  ")]
    return line.removeprefix(name).strip()


def test_table_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*DIGITS, "--seed", "4", "--output", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    # 1,797 samples, floor(1797 / 10) for each client
    assert row("samples of all clients", output) == "1,790"
    assert row("left out", output) == "7 samples"
    assert row("partitioner", output).startswith("DirichletPartitioner(num_clients=10, seed=4, alpha=0.3, ")
    assert row("training", output) == "6 clients, 1,074 samples"
    assert output.endswith(f"{tmp_path}/partition.png\n{tmp_path}/partition.html\n")
    assert {path.name for path in tmp_path.iterdir()} == {"partition.png", "partition.html"}


def test_the_split_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*DIGITS, "--split", "sample", "--split-val", "0", "--split-test", "0.5", "--split-seed", "2"]) == 0
    output = capsys.readouterr().out
    assert row("split", output).startswith("SampleSplit(val=0.0, test=0.5, seed=2")
    # half of 1,797, rounded half to even
    assert row("test", output) == "898 samples that belong to no client"
    assert output.endswith("\nWith --output DIR, a picture and a page are written into that folder.\n")


def test_another_report_is_replaced_only_if_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--output", str(tmp_path)]
    assert main([*DIGITS, *folder]) == 0
    assert main([*DIGITS, *folder]) == 0
    capsys.readouterr()
    assert main([*DIGITS, "--seed", "1", *folder]) == 1
    assert "holds something other than this report" in capsys.readouterr().err
    assert main([*DIGITS, "--seed", "1", *folder, "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("module", "partitioner"), [*((each, "iid") for each in MODULES), *(("digits", each) for each in PARTITIONERS)]
)
def test_every_module_and_partitioner_has_options(
    module: str, partitioner: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["describe", module, "--partitioner", partitioner, "--split", "client", "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert f"arguments of {PARTITIONERS[partitioner].__name__}:" in text
    assert f"arguments of {MODULES[module].__name__}:" in text
    assert "--split-num-folds" in text


def test_names() -> None:
    assert {"cifar10", "digits"} <= set(MODULES)
    assert {"dirichlet", "iid", "qp"} <= set(PARTITIONERS)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["describe"], 2, "the following arguments are required: data"),
        (["describe", "cifar"], 2, "invalid choice: 'cifar' (choose from "),
        (["describe", "digits", "--partitioner", "dir"], 2, "argument --partitioner: invalid choice: 'dir' (choose"),
        (["describe", "digits", "--partitioner", "iid"], 2, "the following arguments are required: --num-clients"),
        (["describe", "digits", "--alpha", "1"], 2, "unrecognized arguments: --alpha 1"),
        ([*DIGITS, "--seed", "two"], 2, "argument --seed: invalid int value: 'two'"),
        (["describe", "digits"], 1, "error: DigitsDataModule has no `partitioner`"),
        ([*DIGITS, "--seed", "-1"], 1, "error: `seed` must be a whole number of at least 0, got -1"),
        ([*DIGITS, "--max-clients", "0"], 1, "error: `max_clients` must be a whole number of at least 1, got 0"),
    ],
)
def test_errors(arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(arguments) == status
    except SystemExit as exit_:
        assert exit_.code == status
    assert message in capsys.readouterr().err


def test_missing_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["describe", "cifar10", "--data-dir", str(tmp_path), "--no-download", *DIGITS[2:]]
    assert main(command) == 1
    assert capsys.readouterr().err.startswith(f"error: There is no {tmp_path}/cifar-10-batches-py/data_batch_1")


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
