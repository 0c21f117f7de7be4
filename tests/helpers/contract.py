"""What contracts compare: the model after each round, and all that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from helpers.toys import quiet_trainer

COMPARED = ("state_dict", "callbacks", "global_step", "lr_schedulers")


class Trace(Callback):
    """Keeps the module's state after each round."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, Tensor]] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.rounds.append({name: value.clone() for name, value in pl_module.state_dict().items()})


class Break(Callback):
    """Saves a checkpoint and breaks the fit off, once: after the second client from the start of a round on."""

    def __init__(self, round_index: int, path: Path) -> None:
        self.round_index, self.path, self.clients = round_index, path, 0

    def on_client_end(self, trainer: L.Trainer, pl_module: L.LightningModule, result: Any) -> None:
        if trainer.current_epoch >= self.round_index and self.clients < 2:
            self.clients += 1
            if self.clients == 2:
                self.trainer = trainer
                trainer.save_checkpoint(self.path)
                raise ArithmeticError("broken by the test")


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
    return {place: value for part in COMPARED for place, value in _leaves(checkpoint[part], part)}


def different(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the places at which two contents differ."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name, "none") != other.get(name, "none"))


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the largest difference between two states of a module; infinite if it is no number."""
    assert one.keys() == other.keys()
    largest = max(float((one[name].double() - value.double()).abs().max()) for name, value in other.items())
    return largest if largest == largest else float("inf")


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
