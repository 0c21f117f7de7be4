"""Hooks that change how batches are made, before the clients of a round."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import quiet_trainer
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.data import TensorDataModule

EXECUTORS = ["sequential", "vectorized"]
SIZES = (20, 12, 7)


class Slope(L.LightningModule):
    """Steps down by a tenth for each batch, and notes the sizes of the batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.weight * batch[0].new_ones(())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Sets(L.Callback):
    """Sets an attribute of the data module in a hook, to the next of some values."""

    def __init__(self, hook: str, name: str, *values: Any) -> None:
        self.name, self.values = name, list(values)
        setattr(self, hook, self.set)

    def set(self, trainer: L.Trainer, *_: Any) -> None:
        if self.values:
            setattr(trainer.datamodule, self.name, self.values.pop(0))  # type: ignore[attr-defined]


def fit(callback: L.Callback, executor: Any, rounds: int) -> float:
    module, data = Slope(), TensorDataModule([(torch.ones(n, 1),) for n in SIZES], batch_size=8)
    algorithm = FedAvg(1.0, executor=executor, weighting="uniform")
    quiet_trainer(max_epochs=rounds, callbacks=[algorithm, callback]).fit(module, datamodule=data)
    return float(module.weight.detach())


@pytest.mark.parametrize("executor", EXECUTORS)
# batches of 20, 12 and 7 samples: of 8: 3 + 2 + 1; of 4: 5 + 3 + 2; of 3: 7 + 4 + 3; of 40: 1 + 1 + 1
@pytest.mark.parametrize(
    ("hook", "batches"), [("on_train_epoch_start", 10 + 14 + 3), ("on_train_epoch_end", 6 + 10 + 14)]
)
def test_a_batch_size_for_each_round(hook: str, batches: int, executor: str) -> None:
    weight = fit(Sets(hook, "batch_size", 4, 3, 40), executor, rounds=3)
    assert weight == pytest.approx(-0.1 * batches / 3, rel=1e-5)
