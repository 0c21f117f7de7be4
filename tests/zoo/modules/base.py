"""The classifier that most entries change in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import CLASSES, FEATURES, Entry


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


class Changed(Classifier):
    """Its loss is what a function of the module, the classifier's loss, the batch and its index returns."""

    def __init__(self, change: Callable[[Any, Tensor, Any, int], Any]) -> None:
        super().__init__()
        self.change = change

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return self.change(self, super().loss(batch, batch_idx), batch, batch_idx)


def changed(name: str, change: Callable[[Any, Tensor, Any, int], Any], *data: Any, **options: Any) -> Entry:
    return Entry(name, lambda: Changed(change), *data, **options)


class Losing(Classifier):
    """Its loss is what a function of the module, the inputs and the classes returns."""

    def __init__(self, of: Callable[[Any, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.of = of

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return self.of(self, *batch)


def losing(name: str, of: Callable[[Any, Tensor, Tensor], Tensor], *data: Any, **options: Any) -> Entry:
    return Entry(name, lambda: Losing(of), *data, **options)


class Prepared(Classifier):
    """Is prepared by a function of the module."""

    def __init__(self, prepare: Callable[[Any], Any]) -> None:
        super().__init__()
        prepare(self)


def prepared(name: str, prepare: Callable[[Any], Any], **options: Any) -> Entry:
    return Entry(name, lambda: Prepared(prepare), **options)


def squares(module: Any) -> Tensor:
    """Return the sum of the squares of all parameters of a module's layers."""
    return sum(parameter.square().sum() for parameter in module.layers.parameters())  # type: ignore[return-value]
