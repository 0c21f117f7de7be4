"""Small modules and federations whose training has a closed form."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from fl_lightning import AggregationCallback, TensorDataModule


class Quadratic(L.LightningModule):
    """f_k(w) = a_k/2 (w - c_k)^2 in float64; a batch is (a, c), each of shape (n,) or (n, d)."""

    def __init__(self, lr: float, start: float | list[float] = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))
        self.lr = lr
        self.seen: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        a, c = batch
        self.seen.append(float(c.flatten()[0]))
        return (0.5 * a * (self.w - c) ** 2).sum() / len(c)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


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


def quiet_trainer(**kwargs: Any) -> L.Trainer:
    """A CPU trainer that prints and writes nothing unless asked to."""
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    return L.Trainer(**{**defaults, **kwargs})


def fit_quadratic(
    callback: AggregationCallback, module: Quadratic, clients: list[tuple[Tensor, Tensor]], rounds: int
) -> Tensor:
    """Train full-batch on the clients and return the final weights."""
    data = TensorDataModule(clients=clients, batch_size=None, shuffle=False)
    quiet_trainer(max_epochs=rounds, callbacks=[callback]).fit(module, datamodule=data)
    return module.w.detach()
