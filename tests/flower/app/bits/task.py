"""What the server, the clients and the simulation share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import lightning as L
import torch
from helpers.listed import Listed
from torch import Tensor, nn
from torch.nn import functional as F

import fl_lightning as fl
from fl_lightning.parts import LocalDifferentialPrivacy, PowerOfChoice, TopK

SIZES = (18, 31, 24)
EVERYBODY = {"clients_per_round": 1.0, "seed": 7}


def _sparse(**options: Any) -> fl.FedAvg:
    return fl.FedAvg(1.0, exchange=TopK(0.2), seed=7, **options)


def _noised(**options: Any) -> fl.FedAvg:
    noise = LocalDifferentialPrivacy(0.3, noise_multiplier=0.5, delta=1e-3)
    return fl.FedAvg(1.0, exchange=[fl.Clip(0.5), noise], seed=7, **options)


def _by_loss(**options: Any) -> fl.FedAvg:
    return fl.FedAvg(sampler=PowerOfChoice(2, 3), seed=7, **options)


METHODS: dict[str, Callable[..., fl.AggregationCallback]] = {
    "FedAvg": partial(fl.FedAvg, 1.0, seed=7),
    "FedProx": partial(fl.FedProx, 0.1, **EVERYBODY),
    "SCAFFOLD": partial(fl.Scaffold, **EVERYBODY),
    "FedDyn": partial(fl.FedDyn, 0.1, **EVERYBODY),
    "FedAdam": partial(fl.FedAdam, **EVERYBODY),
    "RADFed": partial(fl.RADFed, 3, clients_per_round=3, seed=7),
    "FedPer": partial(fl.FedPer, "head", **EVERYBODY),
    "Ditto": partial(fl.Ditto, 0.5, **EVERYBODY),
    "TopK": _sparse,
    "noise": _noised,
}
#: Methods whose clients get several messages, or models, in a round.
SEVERAL: dict[str, Callable[..., fl.AggregationCallback]] = {
    "fine-tuning": partial(fl.FedBABU, "head", every=2, fine_tune_epochs=1, **EVERYBODY),
    "power of choice": _by_loss,
    "IFCA": partial(fl.IFCA, 2, **EVERYBODY),
    "FedProto": partial(fl.FedProto, **EVERYBODY),
}
METHODS |= SEVERAL
#: Methods whose clients keep personal tensors.
PERSONAL = ("FedPer", "Ditto")


def with_failures(*rounds: list[int], **options: Any) -> fl.FedAvg:
    """Return a method whose clients keep remainders, with the clients of each round in the order of the list."""
    return fl.FedAvg(sampler=Listed(*rounds), exchange=TopK(0.2), seed=7, **options)


METHODS["failures"] = partial(with_failures, *[[0, 1, 2]] * 4)


class Net(L.LightningModule):
    """Two layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2))
        self.head = nn.Linear(8, 3)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.head(self.body(x)), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.head(self.body(x)), y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def module() -> Net:
    """Return the module, with the same first weights everywhere."""
    torch.manual_seed(7)
    return Net()


def samples_of(client: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + client)
    size = SIZES[client]
    return torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)


def data_of(*clients: int) -> fl.TensorDataModule:
    """Return a data module of some clients."""
    return fl.TensorDataModule([samples_of(client) for client in clients], batch_size=8)


def trainer(rounds: int, callback: fl.AggregationCallback, **options: Any) -> L.Trainer:
    """Return a trainer that prints nothing."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    given = {**quiet, "enable_checkpointing": False, "accelerator": "cpu", **options}
    return L.Trainer(max_epochs=rounds, callbacks=[callback, *given.pop("callbacks", [])], **given)
