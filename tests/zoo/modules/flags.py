"""Settings that change between rounds, kept in objects, globals, tensors and classes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from zoo.entry import Entry, alike
from zoo.modules import settings
from zoo.modules.base import Classifier
from zoo.modules.stages import entry

FLAGS: dict[str, bool] = {}


class Settings:
    """Settings of a user's own."""

    penalise = False


class Flagged(Classifier):
    """Penalises a list of parameters if a flag says so, ``read(module)``, which ``write(module, flag)`` sets.

    The flag is set when the first round ends.
    """

    penalise = False

    def __init__(self, read: Callable[[Any], Any], write: Callable[[Any, bool], Any]) -> None:
        super().__init__()
        self.config, self.flag = SimpleNamespace(penalise=False), torch.zeros(())
        self.penalised = [p for p in self.layers.parameters() if p.dim() > 1]
        self.read, self.write = read, write
        write(self, False)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        return loss + 0.1 * sum(p.square().sum() for p in self.penalised) if self.read(self) else loss

    def on_train_epoch_end(self) -> None:
        self.write(self, True)


def flagged(name: str, read: Callable[[Any], Any], write: Callable[[Any, bool], Any]) -> Entry:
    return entry(name, lambda: Flagged(read, write), alone="weights by another way")


class SettingOfLoss(Classifier):
    """A criterion whose setting changes between rounds."""

    def prepare(self) -> None:
        self.criterion = nn.CrossEntropyLoss()

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return self.criterion(self(batch[0]), batch[1])

    def on_train_epoch_end(self) -> None:
        self.criterion.label_smoothing = 0.1 * (1 + self.current_epoch)


ENTRIES = [
    entry("setting of a criterion changes", SettingOfLoss),
    *alike(
        flagged("flag in a global", lambda m: FLAGS["on"], lambda m, on: FLAGS.update(on=on)),
        flagged("flag in a namespace", lambda m: m.config.penalise, lambda m, on: setattr(m.config, "penalise", on)),
        flagged("flag in a tensor", lambda m: bool(m.flag > 0), lambda m, on: m.flag.fill_(float(on))),
        flagged("flag in the class", lambda m: m.penalise, lambda m, on: setattr(type(m), "penalise", on)),
        flagged("flag in another class", lambda m: Settings.penalise, lambda m, on: setattr(Settings, "penalise", on)),
        flagged("flag in a module", lambda m: settings.PENALISE, lambda m, on: setattr(settings, "PENALISE", on)),
        flagged("flag of a function", lambda m: settings.penalises(), lambda m, on: settings.set_penalise(on)),
    ),
]
