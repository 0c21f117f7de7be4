"""Fits that something happens to in the middle of a round's end, and what is compared of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, Checkpoint
from torch import Tensor

from fl_lightning import FedAvg, FedAvgM, FedBuff, FedDyn, RADFed, Scaffold
from fl_lightning.parts import Exchange, PersonalParameters, TopK
from helpers.algorithms import SPEEDS, Net, data
from helpers.toys import quiet_trainer


class Poked(Exchange):
    """An exchange that changes nothing; the n-th call of one of its methods begins with ``action``."""

    def __init__(self, method: str = "", action: Callable[[], None] | None = None, number: int = 3) -> None:
        self.method, self.action, self.number = method, action, number

    def poke(self, method: str) -> None:
        if method == self.method:
            self.number -= 1
            if self.number == 0 and self.action is not None:
                self.action()

    def on_aggregate(self, aggregate: Tensor) -> Tensor:
        self.poke("on_aggregate")
        return aggregate

    def on_publish(self, model: Tensor) -> Tensor:
        self.poke("on_publish")
        return model

    def on_round_end(self) -> None:
        self.poke("on_round_end")


def fail() -> None:
    raise ArithmeticError("broken by the test")


OPTIONS: dict[str, Any] = {"seed": 1, "executor": "sequential"}
#: Each is made with one exchange more.
MAKE: dict[str, Callable[[Exchange], Any]] = {
    "FedAvg": lambda poked: FedAvg(4, exchange=poked, buffers="local", **OPTIONS),
    "FedAvgM": lambda poked: FedAvgM(
        0.9, clients_per_round=4, exchange=[PersonalParameters("layers.4"), TopK(0.3), poked], **OPTIONS
    ),
    "FedDyn": lambda poked: FedDyn(0.1, 4, exchange=poked, **OPTIONS),
    "Scaffold": lambda poked: Scaffold(4, exchange=poked, **OPTIONS),
    "RADFed": lambda poked: RADFed(2, 4, exchange=poked, **OPTIONS),
    "FedBuff": lambda poked: FedBuff(3, 4, exchange=poked, speeds=SPEEDS, **OPTIONS),
}


def fit(
    callback: Any, *others: Callback, rounds: int = 4, module: L.LightningModule | None = None, **options: Any
) -> L.Trainer:
    """Fit and return the trainer; the options are those of ``fit`` (``ckpt_path``) and of the trainer."""
    path = options.pop("ckpt_path", None)
    options["enable_checkpointing"] = any(isinstance(callback, Checkpoint) for callback in others)
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback, *others], **options)
    trainer.fit(Net() if module is None else module, datamodule=data(8), ckpt_path=path)
    return trainer


def outcome(trainer: L.Trainer) -> dict[str, Any]:
    """Return all that a fit left: weights, the algorithm's state, learning rates and counts."""
    callback: Any = trainer.callbacks[0]  # type: ignore[attr-defined]
    return {
        "weights": {name: value.tolist() for name, value in trainer.lightning_module.state_dict().items()},
        "state": plain(callback.algorithm.run.state_dict()),
        "lr": [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups],
        "counts": (trainer.current_epoch, trainer.global_step),
    }


@cache
def uninterrupted(name: str) -> dict[str, Any]:
    """Return the outcome of four rounds to which nothing happens."""
    return outcome(fit(MAKE[name](Poked())))


def plain(state: Any) -> Any:
    """Return a state with lists for tensors."""
    if isinstance(state, dict):
        return {name: plain(value) for name, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [plain(value) for value in state]
    return state.tolist() if isinstance(state, Tensor) else state


def rounds_in(path: Path) -> int:
    """Return the rounds that a checkpoint counts as done."""
    loops = torch.load(path, weights_only=True)["loops"]
    return int(loops["fit_loop"]["epoch_progress"]["current"]["processed"])
