"""Writes of hooks into the module count, or are an error; checkpoints may be saved at any moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import Quadratic, clients_that_reach
from torch import Tensor, nn

from fl_lightning import FedAvg, RADFed, TensorDataModule
from fl_lightning.testing.fits import fit


class Shifted(Quadratic):
    """Has the learning rate 0 and the weight 1, to which it adds something when a fit begins."""

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__(0.0, [1.0])
        self.shift = shift

    def on_fit_start(self) -> None:
        self.w.data += self.shift


DATA = TensorDataModule(clients_that_reach([[2.0], [4.0], [9.0]], [1, 1, 1]), batch_size=1)


@pytest.mark.parametrize("redistributions", [1, 4])
def test_writes_before_a_resumed_fit_count(redistributions: int, tmp_path: Path) -> None:
    """Within a cycle they cannot be taken."""
    path, module = tmp_path / "a.ckpt", Shifted(5.0)
    fit(RADFed(redistributions, 2), Shifted(), DATA, 2).save_checkpoint(path)
    if redistributions == 4:
        with pytest.raises(RuntimeError, match="weights were changed between two rounds"):
            fit(RADFed(redistributions, 2), module, DATA, 4, ckpt_path=path)
    else:
        fit(RADFed(redistributions, 2), module, DATA, 4, ckpt_path=path)
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
        fit(FedAvg(1.0, seed=1), module, TensorDataModule(clients_of((6,), (8, 12)), batch_size=4), 1)
        ends.append(module.state_dict())
    assert all(torch.equal(ends[0][key], value) for key, value in ends[1].items())
    assert module.saved == 5
    for number in range(module.saved):
        held = torch.load(tmp_path / f"{number}.ckpt", weights_only=True)["state_dict"]
        assert all(torch.equal(held[key], value) for key, value in first.items())
