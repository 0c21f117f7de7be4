"""A batch for which ``training_step`` returns None is skipped, under every algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.toys import Quadratic, quiet_trainer
from torch import Tensor

from fl_lightning import AggregationCallback, DynamicWeightFedBuff, FedAvg, FedDyn, FedProx, Scaffold, TensorDataModule
from fl_lightning.parts import ImportanceSampler

MAKE: dict[str, Callable[[int], AggregationCallback]] = {
    "FedAvg": lambda m: FedAvg(m, seed=1),
    "FedProx": lambda m: FedProx(0.1, m, seed=1),
    "FedDyn": lambda m: FedDyn(0.1, m, seed=1),
    "Scaffold": lambda m: Scaffold(m, seed=1),
    "Scaffold-1": lambda m: Scaffold(m, option=1, seed=1),
    "DynamicWeightFedBuff": lambda m: DynamicWeightFedBuff(m, clients_per_round=m, seed=1),
    "importance": lambda m: FedAvg(sampler=ImportanceSampler(m), seed=1),
}


class Picky(Quadratic):
    """Returns no loss for a batch of negative numbers."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:  # type: ignore[override]
        return None if bool((batch[1] < 0).any()) else super().training_step(batch, batch_idx)


def client(*optima: float) -> tuple[Tensor, Tensor]:
    return torch.ones(len(optima), dtype=torch.float64), torch.tensor(optima, dtype=torch.float64)


@pytest.mark.parametrize("executor", ["sequential", "auto"])
@pytest.mark.parametrize("name", MAKE)
def test_they_are_as_if_they_were_not_there(name: str, executor: Any) -> None:
    weights = []
    for only_client in (client(1, -1, 2, -1), client(1, 2)):
        callback = MAKE[name](1)
        callback.executor = executor
        module = Picky(lr=0.1, start=5.0)
        data = TensorDataModule(clients=[only_client], batch_size=1, shuffle=False)
        quiet_trainer(max_epochs=3, callbacks=[callback]).fit(module, datamodule=data)
        weights.append(module.w.item())
    assert weights[0] == weights[1] < 5


@pytest.mark.parametrize("name", MAKE)
def test_a_client_with_no_other_batches_takes_part(name: str) -> None:
    module = Picky(lr=0.1, start=5.0)
    data = TensorDataModule(clients=[client(-1, -1), client(2, 3), client(1)], batch_size=1)
    quiet_trainer(max_epochs=3, callbacks=[MAKE[name](3)]).fit(module, datamodule=data)
    assert 0 < module.w.item() < 5
