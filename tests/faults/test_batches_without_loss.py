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


@pytest.mark.parametrize("name", MAKE)
def test_they_are_as_if_they_were_not_there(name: str) -> None:
    def fit(rounds: int, *clients: tuple[Tensor, Tensor]) -> float:
        module, data = Picky(lr=0.1, start=5.0), TensorDataModule(list(clients), batch_size=1, shuffle=False)
        quiet_trainer(max_epochs=rounds, callbacks=[MAKE[name](len(clients))]).fit(module, datamodule=data)
        return module.w.item()

    assert fit(3, client(1, -1, 2, -1)) == fit(3, client(1, 2)) < 5
    assert 0 < fit(2, client(-1, -1), client(2, 3), client(1)) < 5  # one client has no other batches
