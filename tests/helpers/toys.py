"""Small modules and federations whose training has a closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, Checkpoint
from torch import Tensor, nn

from fl_lightning import AggregationCallback, TensorDataModule
from fl_lightning.parts import ClientSampler
from fl_lightning.parts.part import personal_model, walk
from fl_lightning.testing.fits import quiet_trainer


class Descending(L.LightningModule):
    """Takes steps of SGD."""

    lr = 0.1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Quadratic(Descending):
    """f_k(w) = a_k/2 (w - c_k)^2 in float64; a batch is (a, c), each of shape (n,) or (n, d)."""

    def __init__(self, lr: float, start: float | list[float] = 0.0, make_optimizer: Any = None) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))
        self.lr, self.make_optimizer = lr, make_optimizer
        self.seen: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        a, c = batch
        self.seen.append(float(c.flatten()[0]))
        return (0.5 * a * (self.w - c) ** 2).sum() / len(c)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        if self.make_optimizer is not None:
            return self.make_optimizer(self.parameters())
        return super().configure_optimizers()


class Halved(Quadratic):
    """Its learning rate is halved after each step."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Watched(L.LightningModule):
    """A linear layer that keeps the inputs which the steps of each stage get."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(features, classes)
        self.seen: dict[str, list[Tensor]] = {"training": [], "validation": [], "test": [], "predict": []}

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen["training"].append(batch[0])
        return nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen["validation"].append(batch[0])

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.seen["test"].append(batch[0])

    def predict_step(self, batch: Any, batch_idx: int) -> None:
        self.seen["predict"].append(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def quadratic_clients(a: list[float], c: list[float], sizes: list[int] | None = None) -> list[tuple[Tensor, Tensor]]:
    """Return one client per (a_k, c_k), with n_k equal samples."""
    sizes = sizes or [1] * len(a)
    make = {"dtype": torch.float64}
    return [(torch.full((n,), ak, **make), torch.full((n,), ck, **make)) for ak, ck, n in zip(a, c, sizes, strict=True)]


def clients_that_reach(optima: list[list[float]], sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    """With a = 1 and learning rate 1, one full-batch step takes client k exactly to its optimum."""
    return [
        (torch.ones(n, 1, dtype=torch.float64), torch.tensor([c] * n, dtype=torch.float64))
        for c, n in zip(optima, sizes, strict=True)
    ]


def fit_clients(
    callback: AggregationCallback,
    module: L.LightningModule,
    clients: list[Any],
    rounds: int = 1,
    *others: Callback,
    batch_size: int | None = None,
    ckpt_path: Path | None = None,
    **options: Any,
) -> L.Trainer:
    """Train on the clients, by default full-batch, and return the trainer, whose options are the others."""
    data = TensorDataModule(clients, batch_size=batch_size, shuffle=False)
    options.setdefault("enable_checkpointing", any(isinstance(each, Checkpoint) for each in others))
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback, *others], **options)
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return trainer


def fit_quadratic(
    callback: AggregationCallback, module: Quadratic, clients: list[Any], rounds: int, *others: Callback
) -> Tensor:
    """Train full-batch on the clients and return the final weights."""
    fit_clients(callback, module, clients, rounds, *others)
    return module.w.detach()


def own_model(callback: AggregationCallback, client: int) -> Tensor:
    """Return the model by which a client is evaluated."""
    algorithm = callback.algorithm
    return personal_model(walk(*algorithm.parts.values()), client, algorithm.server.model)


class Fixed(ClientSampler):
    """Draws the same clients in each round, in whatever form they are given."""

    def __init__(self, drawn: Any, size: int = 2) -> None:
        self.drawn, self.size = drawn, size

    def cohort_size(self, num_clients: int) -> int:
        return self.size

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> Any:
        return self.drawn


class BodyAndHead(Quadratic):
    """f_k = |body + head - c|^2 / 2: body and head move alike, from 0 with learning rate 1/4."""

    def __init__(self) -> None:
        super().__init__(lr=0.25)
        del self.w
        self.body, self.head = (nn.Linear(1, 1, bias=False).double() for _ in range(2))
        for layer in (self.body, self.head):
            nn.init.zeros_(layer.weight)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (0.5 * (self.body.weight + self.head.weight - batch[1]) ** 2).mean()
