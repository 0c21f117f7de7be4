"""What is told of a table before any work, besides its mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from experiment.conftest import run_here
from helpers.by_client import table_of_clients
from helpers.small_table import F1, small, spec, with_data, with_methods

from fl_lightning.command import main
from fl_lightning.experiment import Findings, check_table, describe_plan, read_table
from fl_lightning.experiment.check import _SHOWN, refuse_mistakes

OWN = spec("faulty.OwnModel", in_features=3072, num_classes=10)
CALLBACKS = [{"class_path": "lightning.pytorch.callbacks.Timer"}, spec("faulty.LogTests", path="log.txt")]
#: Tables without mistakes.
SOUND = [
    small(),
    small(trainer={"max_epochs": 4, "accelerator": "cpu", "devices": "auto", "strategy": "auto", "num_nodes": 1}),
    with_data(monitor="train_loss", mode="min"),
    with_data(curves=["val_loss", "train_loss", "val_acc_clients", "fed/bytes_up"]),
    with_data(score="test_f1_clients_pooled", callbacks=[F1]),
    # Nobody knows what a model or a callback of one's own logs.
    with_data(score="test_own", score_mode="max", model=OWN),
    with_data(score="test_accuracy", score_mode="max", callbacks=CALLBACKS),
    # Without data nobody knows how many clients train.
    with_methods(FedAvg={"callback": spec("fl_lightning.FedAvg", clients_per_round=500)}),
]


def check(table: dict[str, Any], **options: Any) -> Findings:
    return check_table(read_table(table), **options)


def test_tables_without_mistakes(faulty: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = torch.get_rng_state()
    assert [check(table) for table in SOUND] == [Findings()] * len(SOUND)
    # Nothing is written, and no random number is drawn.
    assert torch.equal(torch.get_rng_state(), state)
    assert list(tmp_path.iterdir()) == []


def test_a_mode_that_chooses_the_worst_is_told_of() -> None:
    [text] = check(with_data(mode="min")).warnings
    assert "digits, FedAvg, fold 0, seed 0 and 1 more: `mode` is min" in text
    assert text.endswith("so the worst val_acc_clients is chosen. Give `mode: max`.")


def test_what_cannot_be_built_on_this_machine_is_no_mistake(faulty: None) -> None:
    table = with_data(model=spec("faulty.WithoutWeights"))
    found = check(table)
    text = "`model` faulty.WithoutWeights cannot be built on this machine: OSError: no network"
    assert found == Findings(obstacles=[f"digits, FedAvg, fold 0, seed 0 and 1 more: {text}"])
    assert found.obstacles[0] in describe_plan(read_table(table), "nowhere")


def test_a_dry_run_counts_the_clients_that_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(SOUND[-1]))
    assert main(["run", str(tmp_path / "table.yaml"), "--dry-run"]) == 1
    told = "small: digits, FedAvg, fold 0, seed 0: `clients_per_round` must be at most 6, those that train, got 500.\n"
    assert capsys.readouterr().err.endswith(told)


def test_data_that_are_not_here_are_told_of(tmp_path: Path) -> None:
    partitioner = small()["data"]["digits"]["datamodule"]["init_args"]["partitioner"]
    arguments = {"data_dir": str(tmp_path), "download": False, "partitioner": partitioner}
    table = with_data(datamodule=spec("fl_lightning.datamodules.MNISTDataModule", **arguments))
    [text] = check(table, with_data=True).unchecked
    assert text.startswith("digits, FedAvg, fold 0, seed 0 and 1 more: its data are not here yet (FileNotFoundError: ")
    assert text in describe_plan(read_table(table), tmp_path, with_data=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("of_clients", [True, pytest.param(False, marks=pytest.mark.long)])
def test_what_a_dry_run_finds_sound_is_run(tmp_path: Path, of_clients: bool) -> None:
    last = {"select": "last", "validate_on_test": True}
    choices: list[tuple[list[str], dict[str, Any]]] = [(["test"], last), (["val", "test"], last)]
    choices += [(["test"], {"select": "best on test", "validate_on_test": True}), (["test"], {"select": "last"})]
    for place, (stages, changes) in enumerate(choices):
        table = table_of_clients(stages, of_clients, **changes)
        assert check(table, with_data=True) == Findings()
        [row] = run_here(table, tmp_path / str(place)).rows
        assert row["status"] == "finished"
        score = row["test_acc_clients"] if of_clients else row["test_acc"]
        assert row["val"] == (score if table["data"]["d"]["validate_on_test"] else None)


def test_obstacles_warnings_and_what_is_not_checked_are_lines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Findings([], ["no network", "no x"], [f"warning {number}" for number in range(12)], ["no data", "no y"])
    monkeypatch.setattr("fl_lightning.experiment.check.check_table", lambda table, with_data: found)
    assert refuse_mistakes(read_table(small())) == [
        "no network. These cells will fail.",
        "no x. These cells will fail.",
        *(f"WARNING: warning {number}" for number in range(_SHOWN)),
        f"WARNING: {12 - _SHOWN} more of this kind, for other data sets, methods or values.",
        "NOT CHECKED: no data",
        "NOT CHECKED: no y",
    ]
