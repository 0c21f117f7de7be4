"""Settings of the trainer that no fit of a table can have are mistakes of the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.small_table import small

from fl_lightning.experiment import Findings, check_table, read_table

HERE = "digits, FedAvg, fold 0, seed 0 and 1 more: "


def check(trainer: dict[str, Any], **changes: Any) -> Findings:
    return check_table(read_table(small(trainer={"max_epochs": 4, "accelerator": "cpu", **trainer}, **changes)))


@pytest.mark.parametrize("devices", [1, "auto"])
def test_a_trainer_may_name_its_one_device(devices: int | str) -> None:
    assert check({"devices": devices, "strategy": "auto", "num_nodes": 1}) == Findings()


@pytest.mark.parametrize(
    ("name", "value"), [("devices", 2), ("devices", [0]), ("strategy", "ddp"), ("num_nodes", 2), ("devices", True)]
)
def test_a_fit_has_one_device(name: str, value: Any) -> None:
    [mistake] = check({name: value}).mistakes
    assert mistake == (
        f"{HERE}`trainer` must not have '{name}', got {value!r}: each fit runs in one process on one device. Leave it "
        "out. `--workers 2` runs two fits at a time, and `--devices 0 1` shares two GPUs out among them."
    )


@pytest.mark.parametrize(("rounds", "shown"), [(-1, "-1"), (-5, "-5"), ("60", "'60'"), (2.5, "2.5"), (True, "True")])
def test_a_fit_ends_after_a_number_of_rounds(rounds: Any, shown: str) -> None:
    [mistake] = check({"max_epochs": rounds}).mistakes
    assert mistake.startswith(f"{HERE}`max_epochs` must be a whole number of at least 1, got {shown}")
    assert mistake.endswith("It is the number of rounds.")
    # what else is wrong is named, too
    assert len(check({"max_epochs": rounds, "devices": 2}).mistakes) == 2


CHECKPOINT = "lightning.pytorch.callbacks.ModelCheckpoint"
UNFREEZES = "lightning.pytorch.callbacks.BackboneFinetuning"


@pytest.mark.parametrize(
    ("trainer", "callback", "mistake"),
    [
        ({"val_check_interval": 0.5}, None, "Validation inside a round would see one client's weights, got `val_check"),
        ({"accumulate_grad_batches": -1}, None, "`accumulate_grad_batches` must be at least 1, got -1."),
        ({}, (CHECKPOINT, {"every_n_train_steps": 2}), "ModelCheckpoint with `every_n_train_steps` or `train_time_int"),
        ({}, (UNFREEZES, {"unfreeze_backbone_at_epoch": 2}), "BackboneFinetuning(unfreeze_backbone_at_epoch=2) would"),
        ({"fast_dev_run": True}, None, "`trainer` must not have 'fast_dev_run': such a fit keeps no model"),
        ({"limit_val_batches": 0}, None, "`trainer` must not have 'limit_val_batches' 0: a cell is judged by its"),
        ({"limit_test_batches": 0.0}, None, "`trainer` must not have 'limit_test_batches' 0: a cell is judged by its"),
    ],
)
def test_what_every_fit_refuses_is_a_mistake(trainer: dict[str, Any], callback: Any, mistake: str) -> None:
    callbacks = [] if callback is None else [{"class_path": callback[0], "init_args": callback[1]}]
    [text] = check(trainer, callbacks=callbacks).mistakes
    assert text.startswith(f"{HERE}{mistake}")


MODEL = """
from fl_lightning.models import LogisticRegressionClassifier

class Iterates(LogisticRegressionClassifier):
    def training_step(self, dataloader_iter):
        return super().training_step(next(dataloader_iter)[0], 0)
"""


def test_a_training_step_that_no_fit_can_call_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model_that_iterates.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    table = small()
    table["data"]["digits"]["model"]["class_path"] = "model_that_iterates.Iterates"
    [mistake] = check_table(read_table(table)).mistakes
    assert mistake.startswith(f"{HERE}`training_step(self, dataloader_iter)` cannot run federatedly")
