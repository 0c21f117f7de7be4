"""What a table may hold: nothing is called that makes no part of a fit, and each mistake is named where it is."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

# submitit configures logging when it is first imported, and so closes all handlers that tests have made by then
import submitit  # noqa: F401
import yaml
from helpers.small_table import small
from helpers.values import assert_values
from rich.console import Console

from fl_lightning.command import main
from fl_lightning.experiment import read_table, run_table
from fl_lightning.experiment.check import check_table
from fl_lightning.experiment.table_file import read_yaml


def mistakes_of(table: dict[str, Any]) -> str:
    return " ".join(check_table(read_table(table)).mistakes)


REMOVE = "shutil.rmtree"


@pytest.mark.parametrize("place", ["datamodule", "partitioner", "model", "callback", "callbacks", "trainer", "any"])
def test_a_table_calls_nothing_of_another_kind(tmp_path: Path, faulty: None, place: str) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    spec = {"class_path": REMOVE, "init_args": {"path": str(kept)}}
    table = small()
    digits = table["data"]["digits"]
    if place in ("datamodule", "model"):
        digits[place] = spec
    elif place == "partitioner":
        digits["datamodule"]["init_args"]["partitioner"] = spec
    elif place == "callback":
        table["methods"]["FedAvg"]["callback"] = spec
    elif place == "callbacks":
        table["callbacks"] = [spec]
    elif place == "trainer":
        table["trainer"]["plugins"] = [spec]
    else:  # an argument without an annotation
        table["callbacks"] = [{"class_path": "faulty.TakesAnything", "init_args": {"value": spec}}]
    assert f"{REMOVE} was not called" in mistakes_of(table)
    assert kept.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients_per_rounds": 2}, "unknown entry 'clients_per_rounds'. Did you mean `clients_per_round`?"),
        ({"clients_per_round": "many"}, "clients_per_round"),
    ],
)
def test_arguments_of_a_class_are_named(changes: dict[str, Any], message: str) -> None:
    table = small()
    table["methods"]["FedAvg"]["callback"]["init_args"] = changes
    assert message in mistakes_of(table)


def test_a_missing_argument_is_named() -> None:
    table = small()
    del table["data"]["digits"]["model"]["init_args"]["in_features"]
    assert "LogisticRegressionClassifier needs the argument `in_features`" in mistakes_of(table)


@pytest.mark.parametrize("given", [[1], "x", 3])
def test_arguments_that_are_no_mapping_are_named(given: Any) -> None:
    table = small()
    table["methods"]["FedAvg"]["callback"]["init_args"] = given
    with pytest.raises(ValueError, match=r"methods\.FedAvg: `init_args` of `callback` must be"):
        read_table(table)


def test_an_unknown_argument_of_the_trainer_is_named() -> None:
    assert "Did you mean `gradient_clip_val`" in mistakes_of(small(trainer={"max_epochs": 1, "gradient_clip_vall": 1}))


def test_arguments_of_the_trainer_are_named_if_python_finds_one_of_another_kind() -> None:
    found = mistakes_of(small(trainer={"max_epochs": 1, "accelerator": []}))
    assert "`trainer` has an argument of another kind" in found
    assert "'accelerator': []" in found


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name: a\nmodel: \xff", "line 2"),
        (b"a: 1\nb: " + b"[" * 5000, "line 2: entries are nested"),
        (b"a: &a [*a]", "contains itself"),
        (b"a: 1\nb: !!binary aGVsbG8=", "line 2: bytes"),
        (BOMB.encode(), "100,000 entries"),
    ],
)
def test_a_file_that_is_no_table_is_named_with_the_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=f"bad.yaml.*{message}"):
        read_yaml(tmp_path / "bad.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paper": {"FedAvg": "x"}}, "paper.FedAvg"),
        ({"paper": {"FedAvg": float("nan")}}, "paper.FedAvg"),
        ({"published": {"A": 3}}, "published.A"),
        ({"published": {"A": {"FedAvg": 3.0}}}, "'FedAvg'.*scores"),
        ({"published": {"A": {"scores": {"FedAvg": {"scor": 3.0}}}}}, "Did you mean `score`"),
        ({"published": {"A": {"scores": {"FedAvg": {"score": 3.0, "sd": -1.0}}}}}, "published.A.scores.FedAvg.sd"),
        ({"published": {"A": {"scores": {}, "runs": 0}}}, "published.A.runs"),
        ({"published": {"A": {"scores": {}, "rounds": 1.5}}}, "published.A.rounds"),
        ({"published": {"A": {"scores": {}, "select": "best"}}}, "published.A.select.*'best on test'"),
    ],
)
def test_numbers_of_others_are_numbers(changes: dict[str, Any], message: str) -> None:
    table = small()
    table["data"]["digits"] |= changes
    with pytest.raises(ValueError, match=message):
        read_table(table)


def test_seeds_are_those_that_a_generator_takes() -> None:
    assert read_table(small(seeds=[2**32 - 1])).seeds == [2**32 - 1]
    with pytest.raises(ValueError, match="`seeds`"):
        read_table(small(seeds=[2**32]))


def test_methods_have_names() -> None:
    with pytest.raises(ValueError, match="must have names"):
        read_table(small(methods={" ": small()["methods"]["FedAvg"]}))


def test_brackets_in_a_name_are_no_markup(tmp_path: Path) -> None:
    table = small(methods={"a[/]b": small()["methods"]["FedAvg"]}, trainer={"max_epochs": 1, "accelerator": "cpu"})
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80)
    rows = run_table(table, tmp_path, workers=0, console=terminal)
    assert rows[0]["status"] == "finished"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "slurm", "--engine-options", "a={"], "--engine-options"),
        (["--engine", "slurm", "--engine-options", "a"], "NAME=VALUE"),
        (["--engine", "slurm", "--engine-options", "cluster=local", "slurm_partitoin=x"], "partitoin"),
        (["--output", ""], "--output"),
        (["--", "--dry-run"], "sweep"),
        (["--workers", "-2"], "workers"),
    ],
)
def test_a_wrong_option_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    path = tmp_path / "table.yaml"
    path.write_text(yaml.safe_dump(small()))
    place = [] if "--output" in options else ["--output", str(tmp_path / "out")]
    try:
        status = main(["run", str(path), *place, *options])
    except SystemExit as end:
        status = end.code  # type: ignore[assignment]
    assert status in (1, 2)
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert message in line
    assert_values(line)


def test_a_part_that_is_no_class_is_named() -> None:
    with pytest.raises(ValueError, match=r"methods\.FedAvg: `callback` must be a `class_path`"):
        read_table(small(methods={"FedAvg": {"callback": "fl_lightning.FedProx"}}))
    table = small()
    table["data"]["digits"]["model"] = ["fl_lightning.models.MLPClassifier"]
    with pytest.raises(ValueError, match=r"data\.digits: `model` must be a `class_path`"):
        read_table(table)
