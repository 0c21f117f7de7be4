"""A client's epochs may go on where its last round ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import Fixed, quiet_trainer
from torch import Tensor

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.testing.fits import distance, fit


class Reader(Module):
    """Notes the samples of each batch."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(1, 3))
        self.seen: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen.append(batch[0][:, 0].int().tolist())
        return super().training_step(batch, batch_idx)


def read(rounds: int, **options: Any) -> list[list[int]]:
    """Return the batches of the second client, with samples 0 to 4, that makes two steps a round."""
    x = torch.arange(5.0).double().unsqueeze(1)
    other = (torch.zeros(1, 1).double(), torch.zeros(1, dtype=torch.long))
    data = TensorDataModule([other, (x, torch.zeros(5, dtype=torch.long))], batch_size=2, **options)
    module = Reader()
    alone = Fixed([1], 1)
    algorithm = FedAvg(sampler=alone, local_steps=2, continue_epochs=True, seed=1, executor="sequential")
    quiet_trainer(max_epochs=rounds, callbacks=[algorithm]).fit(module, datamodule=data)
    return module.seen


def test_steps_go_on_in_the_epoch() -> None:
    assert read(3, shuffle=False) == [[0, 1], [2, 3], [4], [0, 1], [2, 3], [4]]
    seen = read(3)
    first, second = ([sample for batch in part for sample in batch] for part in (seen[:3], seen[3:]))
    assert sorted(first) == sorted(second) == list(range(5))
    assert first != second


def train(executor: Any, rounds: int = 4, path: Path | None = None) -> L.Trainer:
    callback = FedAvg(3, local_steps=2, continue_epochs=True, seed=1, executor=executor)
    data = TensorDataModule(clients_of((6,), (7, 11, 12, 3)), batch_size=4)
    return fit(callback, Module(linear()), data, rounds, ckpt_path=path)


def test_resumed_and_stacked_runs_go_on_in_the_epoch(tmp_path: Path) -> None:
    ends: list[Any] = []
    for executor in ("sequential", "vectorized"):
        train(executor, 2).save_checkpoint(tmp_path / executor)
        for path in (None, tmp_path / executor):
            ends.append(train(executor, path=path).lightning_module.state_dict())
        assert distance(ends[-1], ends[-2]) == 0.0
    assert distance(ends[0], ends[-1]) < 1e-9
