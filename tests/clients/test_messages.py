"""Errors about settings, modules and optimizers: each is provoked once, and the file beside has what they say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from helpers.written import assert_as_in, messages
from torch import nn

import fl_lightning as fl
from fl_lightning.clients.batches import LocalSettings
from fl_lightning.clients.optimizer_checks import check_schedules_last, check_steps_known
from fl_lightning.clients.state_vector import StateVector


def trainer_of(*optimizers: Any, interval: str = "epoch") -> Any:
    """Return what is asked of a trainer: optimizers, two batches a step, and schedules, of which one ends after 5."""
    configs = [SimpleNamespace(interval=interval, scheduler=SimpleNamespace(**own)) for own in ({}, {"total_steps": 5})]
    return SimpleNamespace(optimizers=optimizers, lr_scheduler_configs=configs, accumulate_grad_batches=2)


def changed(module: Any, change: Callable[[Any], Any], check: str) -> None:
    """Call a method of the state vector of a module that has changed."""
    state = StateVector(module)
    state.note_constant()
    change(module)
    getattr(state, check)()


def vanishes_and_changes(module: Any) -> None:
    module[1].bias = None
    module[2].bias.data += 1


WEIGHTS = [nn.Parameter(torch.zeros(1))]
TWO = trainer_of(torch.optim.Adam(WEIGHTS), torch.optim.SGD(WEIGHTS))
STEPWISE = trainer_of(interval="step")
NORM = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
LARGE = nn.Sequential(nn.Linear(1, 1), *(nn.Linear(150, 150).requires_grad_(False) for _ in range(2)))
CALLS: dict[str, Callable[[Path], Any]] = {
    "epochs and steps": lambda _: LocalSettings(local_epochs=2, local_steps=3),
    "a file for states": lambda folder: [(folder / "taken").touch(), LocalSettings(state_dir=folder / "taken")],
    "nothing to train": lambda _: StateVector(nn.Linear(2, 2).requires_grad_(False)),
    "a complex parameter": lambda _: StateVector(nn.Linear(2, 2, dtype=torch.complex64)),
    "another shape": lambda _: changed(NORM, lambda module: module[1].running_var.resize_(3), "read"),
    "no tensor": lambda _: changed(nn.BatchNorm1d(2), lambda module: setattr(module, "running_var", None), "read"),
    "other parameters": lambda _: changed(NORM, lambda module: module[0].requires_grad_(False), "check_unchanged"),
    "a frozen tensor": lambda _: changed(LARGE, vanishes_and_changes, "check_constant"),
    "other optimizers": lambda _: check_steps_known(TWO, "Name", fl.FedNova(momentum=0.5).algorithm),
    "a schedule by step": lambda _: check_steps_known(STEPWISE, "Name", fl.QFedAvg(1.0).algorithm),
    "a short schedule": lambda _: check_schedules_last(STEPWISE, 3, [1, 4, 2]),
    "a schedule by round": lambda _: check_schedules_last(trainer_of(), 3, [4]),
    "unknown rounds": lambda _: check_schedules_last(STEPWISE, None, [4]),
}


def test_messages(tmp_path: Path) -> None:
    assert_as_in(Path(__file__).with_name("messages.txt"), messages(CALLS, tmp_path), tmp_path)
