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


@pytest.mark.parametrize(("rounds", "shown"), [(-1, "-1"), (-5, "-5"), ("60", "'60'"), (2.5, "2.5"), (True, "True")])
def test_a_fit_ends_after_a_number_of_rounds(rounds: Any, shown: str) -> None:
    [mistake] = check({"max_epochs": rounds}).mistakes
    assert mistake.startswith(f"{HERE}`max_epochs` must be a whole number of at least 1, got {shown}")
    assert mistake.endswith("It is the number of rounds.")
    # what else is wrong is named, too
    assert len(check({"max_epochs": rounds, "devices": 2}).mistakes) == 2


def test_null_is_no_number_of_rounds() -> None:
    [mistake] = check({"max_epochs": None}).mistakes
    assert mistake.startswith(f"{HERE}`trainer` has no `max_epochs`, the number of rounds.")


def test_the_rounds_of_a_search_are_checked_too() -> None:
    table = small(tuning={"max_epochs": "60"})
    table["methods"]["FedAvg"]["tune"] = {"lr": [0.1, 0.2]}
    [mistake] = check_table(read_table(table)).mistakes
    assert "`max_epochs` must be a whole number of at least 1, got '60'" in mistake


def test_a_fit_may_end_after_a_time() -> None:
    assert check({"max_epochs": -1, "max_time": {"minutes": 1}}) == Findings()


@pytest.mark.parametrize(("every", "shown"), [(0, "0"), ("5", "'5'"), (None, "None"), (0.5, "0.5")])
def test_validation_comes_after_a_number_of_rounds(every: Any, shown: str) -> None:
    [mistake] = check({"check_val_every_n_epoch": every}).mistakes
    assert mistake.startswith(f"{HERE}`check_val_every_n_epoch` must be a whole number of at least 1, got {shown}")
