"""Writes of hooks into the module count, or are an error; checkpoints may be saved at any moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import Quadratic, clients_that_reach, quiet_trainer
from torch import Tensor, nn

from fl_lightning import FedAvg, FedBuff, RADFed, TensorDataModule

CHANGED = "weights were changed between two rounds"


def add(module: L.LightningModule, value: float) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(value)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_the_end_of_a_client_is_too_late_for_changes(executor: str) -> None:
    class AtClientEnd(L.Callback):
        def on_client_end(self, trainer: Any, module: Any, result: Any) -> None:
            add(module, 1.0)

    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor=executor), AtClientEnd()])
    with pytest.raises(RuntimeError, match="`on_client_end` changed the module's weights"):
        trainer.fit(Module(nn.Linear(6, 3)), datamodule=TensorDataModule(clients_of((6,)), batch_size=4))


def quadratic(lr: float = 0.0) -> tuple[Quadratic, TensorDataModule]:
    return Quadratic(lr, [1.0]), TensorDataModule(clients_that_reach([[2.0], [4.0], [9.0]], [1, 1, 1]), batch_size=1)


@pytest.mark.parametrize(
    "make", [lambda: RADFed(redistributions=4, clients_per_round=2), lambda: FedBuff(buffer_size=3)]
)
def test_weights_that_change_between_fits_are_told_while_models_are_under_way(make: Any) -> None:
    """The rate is 0, so that the fit goes on at weight 1."""
    module, data = quadratic()
    trainer = quiet_trainer(max_epochs=2, callbacks=[make()])
    trainer.fit(module, datamodule=data)
    add(module, 5.0)
    trainer.fit_loop.max_epochs = 4
    with pytest.warns(UserWarning, match="other weights than the last fit left"):
        trainer.fit(module, datamodule=data)
    assert float(module.w.detach()) == 1.0


def test_a_second_fit_needs_a_module_of_the_same_size() -> None:
    module, data = quadratic()
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)])
    trainer.fit(module, datamodule=data)
    trainer.fit_loop.max_epochs = 2
    with pytest.raises(ValueError, match="2 values"):
        trainer.fit(Quadratic(0.0, [1.0, 1.0]), datamodule=data)


class Shifted(Quadratic):
    """Adds 5 to its weight when a fit begins, if it is told to."""

    shifts = False

    def on_fit_start(self) -> None:
        if self.shifts:
            add(self, 5.0)


@pytest.mark.parametrize("redistributions", [1, 4])
def test_writes_before_a_resumed_fit_count(redistributions: int, tmp_path: Path) -> None:
    """The rate is 0: the weight is 1, and 6 after the write; within a cycle it cannot be taken."""
    data = quadratic()[1]
    first = quiet_trainer(max_epochs=2, callbacks=[RADFed(redistributions=redistributions, clients_per_round=2)])
    first.fit(Shifted(0.0, [1.0]), datamodule=data)
    first.save_checkpoint(tmp_path / "a.ckpt")
    module = Shifted(0.0, [1.0])
    module.shifts = True
    second = quiet_trainer(max_epochs=4, callbacks=[RADFed(redistributions=redistributions, clients_per_round=2)])
    if redistributions == 4:
        with pytest.raises(RuntimeError, match=CHANGED):
            second.fit(module, datamodule=data, ckpt_path=tmp_path / "a.ckpt")
        return
    second.fit(module, datamodule=data, ckpt_path=tmp_path / "a.ckpt")
    assert float(module.w) == 6.0


class SavesInStep(Module):
    """Saves a checkpoint between the forward and the backward pass of each step."""

    folder: Path | None = None
    saved = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.folder is not None:
            self.trainer.save_checkpoint(self.folder / f"{self.saved}.ckpt")
            self.saved += 1
        return loss


def test_checkpoints_in_a_step_hold_the_server_and_change_nothing(tmp_path: Path) -> None:
    ends = []
    for folder in (None, tmp_path):
        torch.manual_seed(0)
        module = SavesInStep(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
        first = {key: value.clone() for key, value in module.state_dict().items()}
        module.folder = folder
        data = TensorDataModule(clients_of((6,), (8, 12)), batch_size=4)
        quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor="sequential", seed=1)]).fit(module, datamodule=data)
        ends.append(module.state_dict())
    assert all(torch.equal(ends[0][key], value) for key, value in ends[1].items())
    assert module.saved == 5
    for number in range(module.saved):
        held = torch.load(tmp_path / f"{number}.ckpt", weights_only=True)["state_dict"]
        assert all(torch.equal(held[key], value) for key, value in first.items())
