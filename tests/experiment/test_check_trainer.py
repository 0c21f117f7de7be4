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
    ("name", "value"), [("devices", 2), ("devices", [0]), ("strategy", "ddp"), ("num_nodes", 2), ("devices", True)]
)
def test_a_fit_has_one_device(name: str, value: Any) -> None:
    [mistake] = check({name: value}).mistakes
    assert mistake == (
        f"{HERE}`trainer` must not have '{name}', got {value!r}: each fit runs in one process on one device. Leave it "
        "out. `--workers 2` runs two fits at a time, and `--devices 0 1` shares two GPUs out among them."
    )
