"""Settings of the trainer that no fit of a table can have are mistakes of the table."""

from __future__ import annotations

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
    ("name", "value"), [("devices", 2), ("devices", [0]), ("strategy", "ddp"), ("num_nodes", 2), ("max_epochs", 2.5)]
)
def test_what_a_fit_of_a_table_cannot_have(name: str, value: Any) -> None:
    [mistake] = check({name: value}).mistakes
    assert f"`{name}` must " in mistake and repr(value) in mistake


@pytest.mark.parametrize("rounds", [-1, -5, "60"])
def test_a_fit_ends_after_a_number_of_rounds(rounds: Any) -> None:
    [mistake] = check({"max_epochs": rounds}).mistakes
    assert "`max_epochs` must be" in mistake and repr(rounds) in mistake


CHECKPOINT = "lightning.pytorch.callbacks.ModelCheckpoint"
UNFREEZES = "lightning.pytorch.callbacks.BackboneFinetuning"


@pytest.mark.parametrize(
    ("trainer", "callback", "mistake"),
    [
        ({"val_check_interval": 0.5}, None, "Validation inside a round would see one client's weights, got `val_check"),
        ({"accumulate_grad_batches": -1}, None, "`accumulate_grad_batches` must be at least 1, got -1."),
        ({}, (CHECKPOINT, {"every_n_train_steps": 2}), "ModelCheckpoint with `every_n_train_steps` or `train_time_int"),
        ({}, (UNFREEZES, {"unfreeze_backbone_at_epoch": 2}), "BackboneFinetuning(unfreeze_backbone_at_epoch=2) would"),
        ({"fast_dev_run": True}, None, "`fast_dev_run` must not be in `trainer`"),
    ],
)
def test_what_every_fit_refuses_is_a_mistake(trainer: dict[str, Any], callback: Any, mistake: str) -> None:
    callbacks = [] if callback is None else [{"class_path": callback[0], "init_args": callback[1]}]
    [text] = check(trainer, callbacks=callbacks).mistakes
    assert text.startswith(f"{HERE}{mistake}")
