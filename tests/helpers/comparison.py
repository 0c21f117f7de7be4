"""The same small module trained federatedly and by stock Lightning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, Checkpoint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import AggregationCallback, FedAvg, TensorDataModule
from helpers.toys import quiet_trainer

FEATURES, CLASSES = 4, 3


class Classifier(L.LightningModule):
    """A small classifier with weights that depend on nothing but the seed 0."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.lr = lr
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = self.build()

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.layers(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class ValidatedClassifier(Classifier):
    """Logs its validation loss."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    test_step = validation_step

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.layers(batch[0]).argmax(1)


def samples(number: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Return random inputs, shape (number, FEATURES), and classes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(number, FEATURES, generator=generator)
    return x, torch.randint(0, CLASSES, (number,), generator=generator)


def clients_of(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    """Return clients with so many samples each."""
    return [samples(size, seed=10 + client) for client, size in enumerate(sizes)]


def train_federatedly(
    module: L.LightningModule,
    clients: Sequence[tuple[Tensor, Tensor]],
    *,
    batch_size: int | None = 4,
    val: tuple[Tensor, Tensor] | None = None,
    algorithm: AggregationCallback | None = None,
    callbacks: Sequence[Callback] = (),
    max_epochs: int = 1,
    ckpt_path: str | None = None,
    **trainer: Any,
) -> L.Trainer:
    """Train on all clients in each round, without shuffling, unless another ``algorithm`` is given."""
    data = TensorDataModule(list(clients), val, batch_size=batch_size, shuffle=False, eval_batch_size=256)
    aggregation = algorithm or FedAvg(1.0, seed=0)
    trainer.setdefault("enable_checkpointing", any(isinstance(callback, Checkpoint) for callback in callbacks))
    fitter = quiet_trainer(max_epochs=max_epochs, callbacks=[aggregation, *callbacks], **trainer)
    fitter.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return fitter


def train_centrally(
    module: L.LightningModule,
    data: tuple[Tensor, Tensor],
    *,
    batch_size: int = 4,
    val: tuple[Tensor, Tensor] | None = None,
    callbacks: Sequence[Callback] = (),
    max_epochs: int = 1,
    **trainer: Any,
) -> L.Trainer:
    """Train with stock Lightning, without shuffling."""
    loader = DataLoader(TensorDataset(*data), batch_size=batch_size)
    val_loader = None if val is None else DataLoader(TensorDataset(*val), batch_size=256)
    fitter = quiet_trainer(max_epochs=max_epochs, callbacks=list(callbacks), **trainer)
    fitter.fit(module, loader, val_loader)
    return fitter


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the module's state."""
    return {name: value.clone() for name, value in module.state_dict().items()}


def assert_same_weights(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """Fail unless both states are equal bit for bit."""
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name
