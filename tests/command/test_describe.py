from __future__ import annotations

import re
from pathlib import Path

import pytest

from fl_lightning.command import main

DIGITS = ["describe", "digits", "--partitioner", "dirichlet", "--num-clients", "10", "--alpha", "0.3"]


def row(name: str, output: str) -> str:
    [line] = [line for line in output.splitlines() if line.startswith(f"{name}  ")]
    return line.removeprefix(name).strip()


def test_table_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = ["--split", "sample", "--val", "0", "--test", "0.5"]
    assert main([*DIGITS, *split, "--seed", "4", "--output", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    # half of 1,797, rounded half to even, is the test set; floor(899 / 10) of the others for each client
    assert row("test", output) == "898 samples that belong to no client"
    assert row("samples of all clients", output) == "890"
    assert row("split", output).startswith("SampleSplit(val=0.0, test=0.5, seed=4")
    assert row("partitioner", output).startswith("DirichletPartitioner(num_clients=10, alpha=0.3, ")
    assert row("training", output) == "10 clients, 890 samples"
    assert output.endswith(f"{tmp_path}/partition.png\n{tmp_path}/partition.html\n")
    assert {path.name for path in tmp_path.iterdir()} == {"partition.png", "partition.html"}
    assert main([*DIGITS, "--output", str(tmp_path)]) == 1
    assert main([*DIGITS, "--output", str(tmp_path), "--overwrite"]) == 0
    assert main([*DIGITS, "--max-clients", "1"]) == 0
    assert capsys.readouterr().out.endswith("\n--output DIR writes a picture and a page.\n")


def help_of(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["describe", *arguments, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_every_data_set_and_partitioner_has_options(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys=capsys)
    data, partitioners = (re.search(rf"{name} {{(.*?)}}", text) for name in ("\n ", "--partitioner"))
    assert data is not None and partitioners is not None
    assert {"cifar10", "digits"} <= set(data[1].split(","))
    for name in data[1].split(","):
        assert "--batch-size" in help_of(name, capsys=capsys)
    for name in partitioners[1].split(","):
        assert "--num-clients" in help_of("digits", "--partitioner", name, "--split", "client", capsys=capsys)


def test_errors_name_the_argument(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    errors = [
        (["describe", "cifar"], 2, "'cifar'"),
        (["describe", "digits", "--partitioner", "iid"], 2, "num_clients"),
        (["describe", "mnist", "--data-dir", str(tmp_path), "--download", "false"], 1, "`--partitioner`"),
        ([*DIGITS, "--seed", "-1"], 1, "`seed`"),
        (["describe", "cifar10", "--data-dir", str(tmp_path), "--download", "false", *DIGITS[2:]], 1, str(tmp_path)),
    ]
    for arguments, expected, name in errors:
        try:
            status: object = main(arguments)
        except SystemExit as exit_:
            status = exit_.code
        assert status == expected
        assert name in capsys.readouterr().err
