"""All mistakes of a table are named before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from experiment.conftest import run_here
from helpers.by_client import table_of_clients
from helpers.small_table import small, with_methods
from helpers.values import assert_values

from fl_lightning.command import main
from fl_lightning.experiment import Findings, check_table, describe_plan, read_table
from fl_lightning.experiment.check import _SHOWN, refuse_mistakes


def check(table: dict[str, Any]) -> Findings:
    return check_table(read_table(table))


def with_data(**changes: Any) -> dict[str, Any]:
    table = small()
    table["data"]["digits"].update(changes)
    return table


def test_a_table_without_mistakes() -> None:
    assert check(small()) == Findings()
    assert check(with_data(monitor="train_loss", mode="min")) == Findings()


def test_curves_of_the_report_are_checked_before_the_run() -> None:
    assert check(with_data(curves=["val_loss", "train_loss", "val_acc_clients", "fed/bytes_up"])) == Findings()
    for wrong in ("val_f1", "test_acc", "val_f1_clients"):
        [text] = check(with_data(curves=["val_loss", wrong])).mistakes
        assert f"`curves` is '{wrong}'" in text


def test_a_mode_that_chooses_the_worst_is_told_of() -> None:
    [text] = check(with_data(mode="min")).warnings
    assert "digits, FedAvg, fold 0, seed 0 and 1 more: `mode` is min" in text


def test_nothing_is_written_and_no_random_number_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = torch.get_rng_state()
    check(small())
    assert torch.equal(torch.get_rng_state(), state)
    assert list(tmp_path.iterdir()) == []


FEDPROX = {"class_path": "fl_lightning.FedProx"}


def test_all_mistakes_are_named_at_once() -> None:
    table = with_methods(FedProx={"callback": {**FEDPROX, "init_args": {"mu": "$mu"}}, "tune": {"mu": [-1, -2, 1]}})
    table["trainer"]["max_epoch"] = 3
    table["data"]["digits"]["score"] = "nope"
    table["data"]["digits"]["score_mode"] = "max"
    found = check(table).mistakes
    assert len(found) == 4
    assert [text for text in found if "mu=-2: `mu`" in text]
    with pytest.raises(ValueError, match=r"^small has 4 mistakes:\n  - digits, "):
        describe_plan(read_table(table), "nowhere")


def test_what_a_model_of_ones_own_logs_is_not_known(faulty: None) -> None:
    table = with_data(score="test_own", score_mode="max")
    table["data"]["digits"]["model"]["class_path"] = "faulty.OwnModel"
    assert check(table) == Findings()
    # but it is known what the clients' metric is called
    table["data"]["digits"]["score"] = "test_f1_clients"
    [text] = check(table).mistakes
    assert "'test_f1_clients'" in text and "test_acc_clients" in text


def test_the_metric_of_all_samples_together_may_be_the_score() -> None:
    pooled = {"metric": {"object": "fl_lightning.metrics.weighted_f1"}, "name": "f1", "pooled": True}
    table = with_data(score="test_f1_clients_pooled")
    table["callbacks"] = [{"class_path": "fl_lightning.ClientMetrics", "init_args": pooled}]
    assert check(table) == Findings()


def test_what_cannot_be_built_on_this_machine_is_no_mistake(faulty: None) -> None:
    table = with_data()
    table["data"]["digits"]["model"]["class_path"] = "faulty.WithoutWeights"
    found = check(table)
    assert not found.mistakes
    assert "faulty.WithoutWeights" in found.obstacles[0] and "no network" in found.obstacles[0]
    assert found.obstacles[0] in describe_plan(read_table(table), "nowhere")


def test_a_dry_run_counts_the_clients_that_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    method = {"class_path": "fl_lightning.FedAvg", "init_args": {"clients_per_round": 500}}
    table = with_methods(FedAvg={"callback": method})
    [mistake] = check_table(read_table(table), with_data=True).mistakes
    assert "`clients_per_round`" in mistake and "500" in mistake
    # without data nobody can know
    assert check(table) == Findings()
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(table))
    assert main(["run", str(tmp_path / "table.yaml"), "--dry-run"]) == 1
    assert mistake in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [{"in_features": 30}, {"num_classes": 3}])
def test_a_dry_run_gives_the_model_a_batch(arguments: dict[str, int]) -> None:
    table = small()
    table["data"]["digits"]["model"]["init_args"].update(arguments)
    [text] = check_table(read_table(table), with_data=True).mistakes
    assert "`model` LogisticRegressionClassifier" in text and "(64, 3, 32, 32)" in text


def test_data_that_are_not_here_are_told_of(tmp_path: Path) -> None:
    partitioner = small()["data"]["digits"]["datamodule"]["init_args"]["partitioner"]
    arguments = {"data_dir": str(tmp_path), "download": False, "partitioner": partitioner}
    table = with_data(datamodule={"class_path": "fl_lightning.datamodules.MNISTDataModule", "init_args": arguments})
    [text] = check_table(read_table(table), with_data=True).unchecked
    assert "FileNotFoundError: There is no whole MNIST" in text
    assert text in describe_plan(read_table(table), tmp_path, with_data=True)
    assert not list(tmp_path.iterdir())


def test_metrics_of_clients_need_samples_of_clients() -> None:
    table = small()
    split = {"class_path": "fl_lightning.SampleSplit", "init_args": {"val": 0.1, "test": 0.2}}
    table["data"]["digits"]["datamodule"]["init_args"]["split"] = split
    monitor, score = check_table(read_table(table), with_data=True).mistakes
    assert "'val_acc_clients'" in monitor and "`score: test_acc`" in score
    table["data"]["digits"] |= {"monitor": "val_acc", "score": "test_acc"}
    assert check_table(read_table(table), with_data=True) == Findings()


@pytest.mark.parametrize("of_clients", [True, pytest.param(False, marks=pytest.mark.long)])
def test_what_a_dry_run_finds_sound_is_run(tmp_path: Path, of_clients: bool) -> None:
    last = {"select": "last", "validate_on_test": True}
    choices: list[tuple[list[str], dict[str, Any]]] = [(["test"], last), (["val", "test"], last)]
    choices += [(["test"], {"select": "best on test", "validate_on_test": True}), (["test"], {"select": "last"})]
    for place, (stages, changes) in enumerate(choices):
        table = table_of_clients(stages, of_clients, **changes)
        assert check_table(read_table(table), with_data=True) == Findings()
        [row] = run_here(table, tmp_path / str(place)).rows
        assert row["status"] == "finished"
        score = row["test_acc_clients"] if of_clients else row["test_acc"]
        assert row["val"] == (score if table["data"]["d"]["validate_on_test"] else None)


@pytest.mark.parametrize(
    ("stages", "changes", "name"),
    [
        (["test"], {"select": "best on validation"}, "monitor"),
        (["test"], {"select": "best on validation", "among": "virtual"}, "monitor"),
        (["val"], {"select": "last"}, "score"),
        ([], {"select": "last", "validate_on_test": True}, "score"),
    ],
)
def test_samples_that_a_table_needs_and_has_not_are_named(
    stages: list[str], changes: dict[str, Any], name: str
) -> None:
    [mistake] = check_table(read_table(table_of_clients(stages, **changes)), with_data=True).mistakes
    assert f"`{name}` is " in mistake


def with_trainer(callback: tuple[str, dict[str, Any]] | None = None, **trainer: Any) -> dict[str, Any]:
    callbacks = (
        [{"class_path": f"lightning.pytorch.callbacks.{callback[0]}", "init_args": callback[1]}] if callback else []
    )
    return small(trainer={"max_epochs": 4, "accelerator": "cpu", **trainer}, callbacks=callbacks)


def test_a_trainer_may_name_its_one_device() -> None:
    assert check(with_trainer(devices="auto", strategy="auto", num_nodes=1)) == Findings()


MISTAKES = {
    "`wandb` has an unknown entry 'projekt'": small(wandb={"projekt": "x"}),
    "`mode` of `wandb` must be one of": small(wandb={"mode": "offlin"}),
    "`fit`: RuntimeError: ": small(callbacks=2 * [{"class_path": "lightning.pytorch.callbacks.Timer"}]),
    "`trainer` must leave `devices`": with_trainer(devices=2),
    "`trainer` must leave `strategy`": with_trainer(strategy="ddp"),
    "`trainer.max_epochs`, must be a whole number in [1, inf), got 2.5": with_trainer(max_epochs=2.5),
    "got `val_check": with_trainer(val_check_interval=0.5),
    "ModelCheckpoint with `every_n_train_steps`": with_trainer(("ModelCheckpoint", {"every_n_train_steps": 2})),
    "BackboneFinetuning(unfreeze": with_trainer(("BackboneFinetuning", {"unfreeze_backbone_at_epoch": 2})),
    "'max_epoch'": with_trainer(max_epoch=4),
    "`trainer.max_epochs`, must be a whole number in [1, inf), got None": small(trainer={"accelerator": "cpu"}),
    "`trainer` must leave `callbacks`": with_trainer(callbacks=[]),
    "enable_checkpointing": with_trainer(enable_checkpointing=False),
    '"hidden"': with_data(model={"class_path": "fl_lightning.models.MLPClassifier", "init_args": {"hidden": "wide"}}),
    "`score` is 'test_accuracy'": with_data(score="test_accuracy", score_mode="max"),
    "`score` is 'val_acc_clients'": with_data(score="val_acc_clients"),
    "`monitor` is 'val_f1_clients'": with_data(monitor="val_f1_clients"),
    "`model` LightningModule must define forward, validation_step, test_step": with_data(
        model={"class_path": "lightning.LightningModule"}
    ),
    "comes every 5 rounds of 4": with_trainer(check_val_every_n_epoch=5),
    "`check_val_every_n_epoch` must be a whole number in [1, inf), got 0": with_trainer(check_val_every_n_epoch=0),
    "its arguments by name, got {'class_path': 'lightning.pytorch.callbacks.Timer', 'arguments': {}}": small(
        callbacks=[{"class_path": "lightning.pytorch.callbacks.Timer", "arguments": {}}]
    ),
    "`callbacks` must be": small(callbacks=["x"]),
    "must be of the kind AggregationCallback, so": with_methods(
        No={"callback": {"class_path": "lightning.pytorch.callbacks.ModelSummary"}}
    ),
    "3 cannot be imported": with_methods(No={"callback": {"class_path": 3}}),
    "`mu` ": with_methods(No={"callback": {**FEDPROX, "init_args": {"mu": -1}}}),
    "'nu'": with_methods(No={"callback": {**FEDPROX, "init_args": {"mu": 1, "nu": 1}}}),
    "needs the argument `mu`": with_methods(No={"callback": FEDPROX}),
    "`metric`": with_data(metric={"name": "acc", "function": "math.pi"}),
    "'function'": with_data(metric={"name": "f1"}),
    "'nme'": with_data(metric={"name": "acc", "function": "fl_lightning.metrics.accuracy", "nme": "acc"}),
    "`tune` of FedAvg on digits: `lr`": with_methods(FedAvg={"tune": {"lr": 3}}),
    "`tune` of FedAvg on digits: its content": with_methods(FedAvg={"tune": "$grid"}) | {"values": {"grid": [0.1]}},
    "no value for $nothing": with_methods(FedAvg={"values": {"lr": "$nothing"}}),
}


def test_what_an_own_callback_logs_nobody_knows(faulty: None) -> None:
    table = with_data(score="test_accuracy", score_mode="max")
    own = {"class_path": "faulty.LogTests", "init_args": {"path": "log.txt"}}
    table["callbacks"] = [{"class_path": "lightning.pytorch.callbacks.Timer"}, own]
    assert check(table) == Findings()


def test_a_mistake_is_named(faulty: None) -> None:
    found = {name: check(table) for name, table in MISTAKES.items()}
    wrong = {name: got for name, got in found.items() if len(got.mistakes) != 1 or name not in got.mistakes[0]}
    assert wrong == {}
    for name, got in found.items():
        assert_values(got.mistakes[0], name)


def test_obstacles_warnings_and_what_is_not_checked_are_lines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Findings([], ["no network"], [f"warning {number}" for number in range(12)], ["no data"])
    monkeypatch.setattr("fl_lightning.experiment.check.check_table", lambda table, with_data: found)
    assert refuse_mistakes(read_table(small())) == [
        "no network. These cells will fail.",
        *(f"WARNING: warning {number}" for number in range(_SHOWN)),
        f"WARNING: {12 - _SHOWN} more of this kind, for other data sets, methods or values.",
        "NOT CHECKED: no data",
    ]
