"""Small fits, what happens to them, and what is compared: the model after each round, and all of a checkpoint."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning.data import TensorDataModule
from fl_lightning.parts.part import walk

COMPARED = ("state_dict", "callbacks", "global_step", "lr_schedulers")
#: Unequal clients, whose last batches have two sizes: PyTorch captures a step for each.
_SIZES = (8, 14, 6, 22, 14, 16)


class BodyAndHead(L.LightningModule):
    """A body and a head, with dropout; its steps are those of plain SGD."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.body = nn.Linear(6, 4)
            self.drop = nn.Dropout(0.2)
            self.head = nn.Linear(4, 3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of three classes."""
        logits: Tensor = self.head(self.drop(torch.tanh(self.body(x))))
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the cross entropy."""
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def six_clients(batch_size: int = 8) -> TensorDataModule:
    """Return six clients of unequal sizes, with six features and three classes."""
    generator = torch.Generator().manual_seed(0)
    clients = []
    for size in _SIZES:
        features = torch.randn(size, 6, generator=generator).double()
        clients.append((features, torch.randint(0, 3, (size,), generator=generator)))
    return TensorDataModule(clients, val=clients[0], batch_size=batch_size)


class Trace(Callback):
    """Keeps the module's state when the fit begins, and after each round."""

    def __init__(self) -> None:
        self.first: dict[str, Tensor] = {}
        self.rounds: list[dict[str, Tensor]] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep the first state."""
        self.first = _copy(pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep the state."""
        self.rounds.append(_copy(pl_module))


class Scramble(Callback):
    """Sets the global generators to other states in each fit and on each process."""

    starts = 0

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Set them."""
        Scramble.starts += 1
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(1000 * Scramble.starts + trainer.global_rank)


class Writes(Callback):
    """Finds declared tensors of parts that are written to in a round.

    Attributes:
        found: The parts and attributes, such as ``"Momentum.velocity"``.
    """

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._kept: list[tuple[str, Tensor, Tensor]] = []

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep the tensors, and copies of them."""
        algorithm = trainer.callbacks[0].algorithm  # type: ignore[attr-defined]
        self._kept = []
        for part in walk(*algorithm.parts.values()):
            for name, value in part.declared().items():
                for tensor in _tensors(value):
                    self._kept.append((f"{type(part).__name__}.{name}", tensor, tensor.clone()))

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Compare them."""
        for name, tensor, copy in self._kept:
            if not torch.equal(tensor, copy):
                self.found.add(name)


class Break(Callback):
    """Saves a checkpoint and breaks the fit off, once: after the second client from the start of a round on."""

    def __init__(self, round_index: int, path: Path) -> None:
        self.round_index = round_index
        self.path = path
        self.clients = 0

    def on_client_end(self, trainer: L.Trainer, pl_module: L.LightningModule, result: Any) -> None:
        """Count the clients, and break off after the second."""
        if trainer.current_epoch >= self.round_index and self.clients < 2:
            self.clients += 1
            if self.clients == 2:
                self.trainer = trainer
                trainer.save_checkpoint(self.path)
                raise ArithmeticError("broken by the test")


def quiet_trainer(**options: Any) -> L.Trainer:
    """Return a trainer on the CPU that prints and writes nothing unless asked to."""
    defaults: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    return L.Trainer(**{**defaults, **options})


def fit(
    callback: Callback,
    module: L.LightningModule,
    data: L.LightningDataModule,
    rounds: int,
    *others: Callback,
    ckpt_path: Path | None = None,
    **options: Any,
) -> L.Trainer:
    """Fit and return the trainer; the other options are the trainer's."""
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback, *others], **options)
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return trainer


def content(trainer: L.Trainer, folder: Path) -> dict[str, Any]:
    """Return what a checkpoint would hold, of tensors the bytes, by its place."""
    path = folder / "content.ckpt"
    trainer.save_checkpoint(path)
    checkpoint = torch.load(path, weights_only=True)
    found: dict[str, Any] = {}
    for part in COMPARED:
        found |= dict(_leaves(checkpoint[part], part))
    return found


def different(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the places at which two contents differ."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name, "none") != other.get(name, "none"))


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the largest difference between two states of a module; infinite if it is no number."""
    assert one.keys() == other.keys()
    largest = 0.0
    for name, value in other.items():
        apart = float((one[name].double() - value.double()).abs().max())
        # A comparison with NaN is false.
        if not apart <= largest:
            largest = apart
        if largest != largest:
            return float("inf")
    return largest


def _copy(module: L.LightningModule) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for held in value.values():
            yield from _tensors(held)
    elif isinstance(value, (list, tuple)):
        for held in value:
            yield from _tensors(held)


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, held in value.items():
            yield from _leaves(held, f"{place}/{key}")
    elif isinstance(value, (list, tuple)):
        for number, held in enumerate(value):
            yield from _leaves(held, f"{place}/{number}")
    elif isinstance(value, Tensor):
        yield place, (value.dtype, value.numpy().tobytes())
    else:
        yield place, value
