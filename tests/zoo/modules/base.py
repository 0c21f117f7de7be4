"""The classifier that most entries change in one place."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import CLASSES, FEATURES


def perceptron(*between: nn.Module, width: int = 5) -> nn.Sequential:
    """Return a network of two linear layers with something between them, a ReLU at least."""
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), *between, nn.Linear(width, CLASSES))


class Classifier(L.LightningModule):
    """Logs its training loss over the epoch, as Lightning's introduction does."""

    def __init__(self, layers: nn.Module | None = None, lr: float = 0.1) -> None:
        super().__init__()
        self.layers = perceptron() if layers is None else layers
        self.lr = lr
        self.prepare()

    def prepare(self) -> None:
        """Set what the loss needs."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch, batch_idx)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)
