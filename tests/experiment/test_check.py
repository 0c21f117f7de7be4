"""All mistakes of a table are named before any work."""

from __future__ import annotations

import io
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers.by_client import table_of_clients
from helpers.small_table import small, with_methods
from rich.console import Console
from torchvision.models import mobilenet_v2

from fl_lightning import FedProx
from fl_lightning.experiment import Findings, check_table, describe_plan, read_table, run_table
from fl_lightning.experiment.__main__ import main

HERE = "digits, FedAvg, fold 0, seed 0 and 1 more: "


def check(table: dict[str, Any]) -> Findings:
    return check_table(read_table(table))


def with_data(**changes: Any) -> dict[str, Any]:
    table = small()
    table["data"]["digits"].update(changes)
    return table


def test_a_table_without_mistakes() -> None:
    assert check(small()) == Findings()


def test_a_table_without_rounds_has_one_mistake() -> None:
    [mistake] = check(small(trainer={"max_epochs": 0, "accelerator": "cpu"})).mistakes
    assert mistake.endswith("`max_epochs` must be a whole number of at least 1, got 0. It is the number of rounds.")


def test_rounds_after_the_last_aggregation_are_told_in_the_plan(tmp_path: Path) -> None:
    table = small(trainer={"max_epochs": 5, "accelerator": "cpu"}, folds=[0, 1])
    [text] = check(table).warnings
    assert text.startswith("digits, RADFed, fold 0, seed 0 and 1 more: `max_epochs=5` is not a multiple of `redistrib")
    assert "`redistributions=2`: the last round comes after the last aggregation, and" in text
    assert describe_plan(read_table(table), tmp_path).endswith(f"\nWARNING: {text}")
    table["methods"]["RADFed"]["callback"]["init_args"]["redistributions"] = "$S"
    table["methods"]["RADFed"]["tune"] = {"S": [2, 3, 4, 5]}
    table["trainer"]["max_epochs"] = 7
    lines = describe_plan(read_table(table), tmp_path).splitlines()
    assert [line[:20] for line in lines if line.startswith("WARNING")] == [
        "WARNING: digits, RAD",
        "WARNING: digits, RAD",
        "WARNING: 2 more of t",
    ]


def test_nothing_is_written_and_no_random_number_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = torch.get_rng_state()
    check(small())
    assert torch.equal(torch.get_rng_state(), state)
    assert list(tmp_path.iterdir()) == []


FEDPROX = {"class_path": "fl_lightning.FedProx"}


@pytest.mark.parametrize(
    ("table", "mistake"),
    [
        (
            small(trainer={"max_epoch": 4, "accelerator": "cpu"}),
            f"{HERE}`trainer` has an unknown argument 'max_epoch'. Did you mean 'max_epochs'?",
        ),
        (
            small(trainer={"accelerator": "cpu"}),
            f"{HERE}`trainer` has no `max_epochs`, the number of rounds. Write `trainer: {{max_epochs: 100}}`.",
        ),
        (
            small(trainer={"max_epochs": 4, "callbacks": []}),
            f"{HERE}`trainer` must not have 'callbacks'. Callbacks belong in the list `callbacks` of the table, of a "
            "data set or of a method.",
        ),
        (
            with_data(model={"class_path": "fl_lightning.models.MLPClassifier", "init_args": ["lr"]}),
            f"{HERE}`init_args` of fl_lightning.models.MLPClassifier must be a mapping from names to values, got "
            "['lr']. Write `init_args: {name: value}`.",
        ),
        (
            with_data(score="test_accuracy", score_mode="max"),
            f"{HERE}`score` is 'test_accuracy', which is never logged. Names are test_acc, test_acc_clients, "
            "test_loss.",
        ),
        (
            with_data(monitor="val_f1_clients"),
            f"{HERE}`monitor` is 'val_f1_clients', which is never logged. Names are val_acc, val_acc_clients, "
            "val_loss.",
        ),
        (
            small(callbacks=["x"]),
            f"{HERE}Each of `callbacks` must be a mapping with a `class_path` and, for arguments, `init_args`, got "
            "'x'. Write `{class_path: x}`.",
        ),
        (
            small(callbacks=[{"class_path": "collections.OrderedDict"}]),
            f"{HERE}`callbacks` must be a list of Lightning callbacks beside the aggregation callback, got OrderedDict "
            "in it. Give class paths such as fl_lightning.diagnostics.LocalDivergence.",
        ),
        (
            with_methods(FedProx={"callback": "fl_lightning.FedProx"}),
            "digits, FedProx, fold 0, seed 0: `callback` must be a mapping with a `class_path` and, for arguments, "
            "`init_args`, got 'fl_lightning.FedProx'. Write `{class_path: fl_lightning.FedProx}`.",
        ),
        (
            with_data(model=["fl_lightning.models.MLPClassifier"]),
            f"{HERE}`model` must be a mapping with a `class_path` and, for arguments, `init_args`, got list. Write "
            "`{class_path: package.Class}`.",
        ),
        (
            with_methods(FedProx={"callback": {**FEDPROX, "init_args": {"mu": -1}}}),
            "digits, FedProx, fold 0, seed 0: `mu` must be a finite number of at least 0, got -1. 0 is FedAvg's "
            "objective.",
        ),
        (
            with_methods(FedProx={"callback": {**FEDPROX, "init_args": {"mu": 1, "nu": 1}}}),
            "digits, FedProx, fold 0, seed 0: `callback` fl_lightning.FedProx: TypeError: "
            f"FedProx has no argument `nu`. It takes `{'`, `'.join(signature(FedProx).parameters)}`.",
        ),
        (
            with_methods(No={"callback": {"class_path": "lightning.pytorch.callbacks.EarlyStopping"}}),
            "digits, No, fold 0, seed 0: `callback` must be an aggregation callback such as FedAvg, got EarlyStopping. "
            "Put other callbacks into the list `callbacks`.",
        ),
        (
            with_methods(No={"callback": {"class_path": 3}}),
            "digits, No, fold 0, seed 0: A class path must be a string such as 'fl_lightning.FedAvg', got 3.",
        ),
        (
            with_data(datamodule={"class_path": "collections.OrderedDict", "init_args": {"fold": "$fold"}}),
            f"{HERE}`datamodule` must be a FederatedDataModule, got OrderedDict. Give the class path of one, such as "
            "datamodules.MNISTDataModule.",
        ),
        (
            with_data(model={"class_path": "collections.OrderedDict"}),
            f"{HERE}`model` must be a LightningModule, got OrderedDict. Give the class path of one, such as "
            "fl_lightning.models.MLPClassifier.",
        ),
        (
            with_data(metric={"name": "acc", "function": "math.pi"}),
            f"{HERE}`metric.function` must be a function of scores and targets, got 3.141592653589793. Give the path "
            "of one, such as fl_lightning.metrics.weighted_f1.",
        ),
        (
            with_methods(FedAvg={"tune": {"lt": [1, 2]}}),
            "methods.FedAvg: `tune` has 'lt', which has no effect: nothing has the text $lt. Use it, or remove it.",
        ),
        (
            with_methods(FedAvg={"values": {"lt": 1}}),
            "methods.FedAvg: `values` has 'lt', which has no effect: nothing has the text $lt. Use it, or remove it.",
        ),
        (
            small(trainer={"max_epochs": 4, "accelerator": "cpu", "enable_checkpointing": False}),
            f"{HERE}`trainer`: MisconfigurationException: Trainer was configured with `enable_checkpointing=False` but "
            "found `ModelCheckpoint` in callbacks list.",
        ),
    ],
)
def test_a_mistake_is_named(table: dict[str, Any], mistake: str) -> None:
    assert check(table) == Findings([mistake])


def test_all_mistakes_are_named_at_once() -> None:
    table = with_methods(FedProx={"callback": {**FEDPROX, "init_args": {"mu": "$mu"}}, "tune": {"mu": [-1, -2, 1]}})
    table["trainer"]["max_epoch"] = 3
    table["data"]["digits"]["score"] = "nope"
    table["data"]["digits"]["score_mode"] = "max"
    found = check(table).mistakes
    assert len(found) == 4
    assert [text for text in found if "mu=-2: `mu` must be a finite number of at least 0, got -2" in text]
    with pytest.raises(ValueError, match=r"^small has 4 mistakes:\n  - digits, "):
        describe_plan(read_table(table), "nowhere")


def test_several_data_sets_share_a_mistake() -> None:
    table = small(seeds=[0, 1])
    table["data"]["other"] = {**table["data"]["digits"]}
    table["trainer"]["max_epoch"] = 3
    [text] = check(table).mistakes
    assert text.startswith("digits, FedAvg, fold 0, seed 0 and 7 more: `trainer` has")


def test_what_a_model_of_ones_own_logs_is_not_known(faulty: None) -> None:
    table = with_data(score="test_own", score_mode="max")
    table["data"]["digits"]["model"]["class_path"] = "faulty.OwnModel"
    assert check(table) == Findings()
    # but it is known what the clients' metric is called
    table["data"]["digits"]["score"] = "test_f1_clients"
    [text] = check(table).mistakes
    assert text.endswith("`score` is 'test_f1_clients', which is never logged. Names are test_acc_clients.")


def test_a_further_metric_of_clients_may_be_the_score() -> None:
    arguments = {"metric": {"object": "fl_lightning.metrics.weighted_f1"}, "name": "f1"}
    f1 = {"class_path": "fl_lightning.ClientMetrics", "init_args": arguments}
    assert check(with_data(score="test_f1_clients", score_mode="max", callbacks=[f1])) == Findings()


def test_what_cannot_be_built_on_this_machine_is_no_mistake(faulty: None) -> None:
    table = with_data()
    table["data"]["digits"]["model"]["class_path"] = "faulty.WithoutWeights"
    text = f"{HERE}`model` faulty.WithoutWeights cannot be built on this machine: OSError: no network"
    assert check(table) == Findings([], [text])
    assert f"{text}. These cells will fail." in describe_plan(read_table(table), "nowhere")


WRONG_COHORT = "`clients_per_round` is 500, but only 6 clients train. Give at most 6, or a fraction such as 0.1."


def test_a_dry_run_counts_the_clients_that_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    method = {"class_path": "fl_lightning.FedAvg", "init_args": {"clients_per_round": 500}}
    table = with_methods(FedAvg={"callback": method})
    found = check_table(read_table(table), with_data=True)
    assert found == Findings([f"digits, FedAvg, fold 0, seed 0: {WRONG_COHORT}"])
    # without data nobody can know
    assert check(table) == Findings()
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(table))
    assert main([str(tmp_path / "table.yaml"), "--dry-run"]) == 1
    assert WRONG_COHORT in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"in_features": 30}, "which are of shape (64, 3, 32, 32) with labels up to 8: RuntimeError: "),
        ({"num_classes": 3}, "which are of shape (64, 3, 32, 32) with labels up to 8: IndexError: Target"),
    ],
)
def test_a_dry_run_gives_the_model_a_batch(arguments: dict[str, int], message: str) -> None:
    table = small()
    table["data"]["digits"]["model"]["init_args"].update(arguments)
    [text] = check_table(read_table(table), with_data=True).mistakes
    model = "`model` fl_lightning.models.LogisticRegressionClassifier does not take the batches of `datamodule`, "
    assert text.startswith(f"{HERE}{model}{message}")


def test_data_that_are_not_here_are_told_of(tmp_path: Path) -> None:
    arguments = {"data_dir": str(tmp_path), "download": False, "partitioner": None}
    table = with_data(datamodule={"class_path": "datamodules.MNISTDataModule", "init_args": arguments})
    arguments["partitioner"] = small()["data"]["digits"]["datamodule"]["init_args"]["partitioner"]
    [text] = check_table(read_table(table), with_data=True).unchecked
    assert text.startswith(f"{HERE}its data are not here yet (FileNotFoundError: There is no whole MNIST")
    assert "NOT CHECKED: digits, FedAvg" in describe_plan(read_table(table), tmp_path, with_data=True)
    assert not list(tmp_path.iterdir())


def test_a_dry_run_downloads_no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("TORCH_HOME", "FL_LIGHTNING_DATA"):
        monkeypatch.setenv(name, str(tmp_path))  # where no weights are
    table = with_data(model={"class_path": "fl_lightning.models.MobileNetV2Classifier"}, monitor="val_acc")
    [text] = check_table(read_table(table), with_data=True).unchecked
    assert "`model` fl_lightning.models.MobileNetV2Classifier downloads https://download.pytorch.org/models/mob" in text
    assert not list(tmp_path.rglob("*.pth"))
    assert "".join(capsys.readouterr()) == ""


def test_a_dry_run_finds_the_weights_in_the_folder_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FL_LIGHTNING_DATA", str(tmp_path))
    (tmp_path / "weights").mkdir()
    torch.save(mobilenet_v2(weights=None).state_dict(), tmp_path / "weights" / "mobilenet_v2-b0353104.pth")
    table = with_data(model={"class_path": "fl_lightning.models.MobileNetV2Classifier"}, monitor="val_acc")
    assert check_table(read_table(table), with_data=True) == Findings()


MODULE = """
import lightning as L, torch
from torch import nn

class Trains(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3072, 10)
    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Validates(Trains):
    def forward(self, x):
        return self.layer(x.flatten(1))
    def validation_step(self, batch, batch_idx):
        pass
"""


@pytest.mark.parametrize(
    ("name", "missing"),
    [("Trains", "no `forward` and no `validation_step` and no `test_step`"), ("Validates", "no `test_step`")],
)
def test_a_model_must_have_what_every_fit_calls(
    name: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    [mistake] = check(with_data(model={"class_path": f"model_of_mine.{name}"})).mistakes
    assert f"`model` model_of_mine.{name} has {missing}. A fit of a table validates and tests" in mistake


def test_metrics_of_clients_need_samples_of_clients() -> None:
    table = small()
    table["data"]["digits"]["datamodule"]["init_args"]["split"] = {
        "class_path": "fl_lightning.SampleSplit",
        "init_args": {"val": 0.1, "test": 0.2},
    }
    [mistake] = check_table(read_table(table), with_data=True).mistakes
    assert "`monitor` is 'val_acc_clients', a metric of clients, and the validation samples of this data set" in mistake
    assert "`score` is 'test_acc_clients', a metric of clients, and the test samples" in mistake
    assert "`monitor: val_acc`" in mistake
    assert "`score: test_acc`" in mistake
    table["data"]["digits"] |= {"monitor": "val_acc", "score": "test_acc"}
    assert check_table(read_table(table), with_data=True) == Findings()


def test_a_metric_whose_mode_contradicts_its_name_is_told() -> None:
    table = with_data(monitor="val_loss", score="test_acc")
    [warning] = check_table(read_table(table)).warnings
    assert warning == (
        "data.digits: the models and values with the largest val_loss are chosen, because `mode` is max. Give "
        "`mode: min`."
    )
    table["data"]["digits"]["mode"] = "min"
    assert check_table(read_table(table)).warnings == []


def test_a_value_for_a_data_set_that_is_left_out_has_an_effect() -> None:
    table = with_methods(FedAvg={"values": {"width": 4}})
    model = {
        "class_path": "fl_lightning.models.MLPClassifier",
        "init_args": {"in_features": 3072, "hidden": ["$width"]},
    }
    other = {**table["data"]["digits"], "model": model}
    table["data"]["other"], table["methods"] = other, {"FedAvg": table["methods"]["FedAvg"]}
    assert check_table(read_table(table).only(data=["digits"])).mistakes == []


@pytest.mark.parametrize("of_clients", [True, False])
@pytest.mark.parametrize(
    ("stages", "changes"),
    [
        (["test"], {"select": "last", "validate_on_test": True}),
        (["val", "test"], {"select": "last", "validate_on_test": True}),
        (["test"], {"select": "aggregated", "validate_on_test": True}),
        (["test"], {"select": "last"}),
    ],
)
def test_what_a_dry_run_finds_sound_is_run(
    tmp_path: Path, stages: list[str], changes: dict[str, Any], of_clients: bool
) -> None:
    table = table_of_clients(stages, of_clients, **changes)
    assert check_table(read_table(table), with_data=True) == Findings()
    [row] = run_table(table, tmp_path, workers=0, console=Console(file=io.StringIO()))
    assert row["status"] == "finished"
    score = row["test_acc_clients"] if of_clients else row["test_acc"]
    assert row["val"] == (score if table["data"]["d"]["validate_on_test"] else None)


@pytest.mark.parametrize(
    ("stages", "changes", "name"),
    [
        (["test"], {"select": "aggregated"}, "monitor"),
        (["test"], {"select": "virtual"}, "monitor"),
        (["val"], {"select": "last"}, "score"),
        ([], {"select": "last", "validate_on_test": True}, "score"),
    ],
)
def test_samples_that_a_table_needs_and_has_not_are_named(
    stages: list[str], changes: dict[str, Any], name: str
) -> None:
    [mistake] = check_table(read_table(table_of_clients(stages, **changes)), with_data=True).mistakes
    assert f"`{name}` is " in mistake
    assert " samples. Give it some" in mistake


def test_a_search_needs_validation_samples() -> None:
    table = table_of_clients(["test"], select="last")
    table["methods"]["FedAvg"]["tune"] = {"lr": [0.1, 0.2]}
    table["data"]["d"]["model"]["init_args"]["lr"] = "$lr"
    [mistake] = check_table(read_table(table), with_data=True).mistakes
    assert "`monitor` is 'val_acc_clients'" in mistake
