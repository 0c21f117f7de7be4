"""Callbacks: Lightning's own, small changes of them, and such that look at batches or clients."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, TQDMProgressBar

from zoo.entry import UNEQUAL, Entry, one_by_one
from zoo.modules.base import Classifier
from zoo.modules.logging import LogsStepAndEpoch


class OwnBar(TQDMProgressBar):
    """Overrides nothing."""


class ReadsBatches(Callback):
    """Adds up the losses of batches."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pl_module.summed_loss = getattr(pl_module, "summed_loss", 0.0) + float(outputs["loss"])


class Clients(Callback):
    """Notes clients and their models, and gives each a learning rate and a head of its own."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        number = client.task.client
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = 0.02 * (1 + number)
        with torch.no_grad():
            pl_module.layers[2].bias.fill_(0.1 * number)

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        norm = float(sum(p.detach().square().sum() for p in pl_module.parameters()))
        self.notes.append([result.task.client, norm])


class DoublesLater(Callback):
    """Doubles gradients from the second round on, by what is set on an object of Lightning's or on this callback."""

    def __init__(self, place: str) -> None:
        self.place = place

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch != 1:
            return
        if self.place == "precision":
            trainer.precision_plugin.pre_backward = lambda loss, module: 2 * loss
        elif self.place == "strategy":
            stock = trainer.strategy.backward
            trainer.strategy.backward = lambda loss, *rest: stock(2 * loss, *rest)
        else:
            weight = pl_module.layers[0].weight
            self.on_after_backward = lambda *_: weight.grad.mul_(2)  # type: ignore[method-assign]


def doubled(place: str) -> Entry:
    return Entry(
        f"gradients doubled by the {place}",
        Classifier,
        callbacks=lambda: [DoublesLater(place)],
        trainer={"max_epochs": 3},
        by_hand=False,
    )


def stopping() -> list[Callback]:
    return [EarlyStopping("last", patience=2, check_on_train_epoch_end=True)]


BAR = {"enable_progress_bar": True}
ENTRIES = [
    Entry(
        "EarlyStopping on a step value", LogsStepAndEpoch, sizes=UNEQUAL, callbacks=stopping, trainer={"max_epochs": 8}
    ),
    *one_by_one(
        Entry("reads the outputs of batches", Classifier, callbacks=lambda: [ReadsBatches()]),
        Entry("notes and sets of each client", Classifier, callbacks=lambda: [Clients()]),
        doubled("strategy"),
    ),
]
LONG = [
    Entry("subclass of a progress bar", Classifier, callbacks=lambda: [OwnBar(refresh_rate=0)], trainer=BAR),
    *one_by_one(doubled("precision"), doubled("callback")),
]
