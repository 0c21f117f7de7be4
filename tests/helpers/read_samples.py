"""Samples that are read one by one, and a fit of clients that have such."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fl_lightning import ClientDatasetsModule, FedAvg, FederatedCheckpoint
from helpers.stacked import Module
from helpers.toys import quiet_trainer


class Points(Dataset[Any]):
    """Inputs of four numbers that may be scaled, and a class."""

    def __init__(self, size: int = 8, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, 4, generator=generator, dtype=torch.float64)
        self.scale = 1.0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index] * self.scale, index % 3


class Validated(Module):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self.layers(batch[0]), batch[1]))


def linear() -> Validated:
    torch.manual_seed(0)
    return Validated(nn.Linear(4, 3))


def flat(module: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def sets_of(kind: Any = Points) -> list[Any]:
    return [kind(6 + 3 * place, place) for place in range(3)]


def fit(
    sets: list[Any],
    *callbacks: L.Callback,
    executor: str = "sequential",
    rounds: int = 2,
    ckpt_path: str | None = None,
    **options: Any,
) -> Tensor:
    module = linear()
    trainer = quiet_trainer(
        max_epochs=rounds,
        callbacks=[FedAvg(1.0, seed=1, executor=executor, local_epochs=2), *callbacks],
        enable_checkpointing=any(isinstance(callback, FederatedCheckpoint) for callback in callbacks),
    )
    data = ClientDatasetsModule(sets, **{"batch_size": 4, **options})
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return flat(module)
