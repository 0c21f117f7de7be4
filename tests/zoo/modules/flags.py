"""Settings that change between rounds, kept in objects, globals, tensors and classes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from zoo.modules import settings
from zoo.modules.base import Classifier
from zoo.modules.stages import entry


class FlagInNamespace(Classifier):
    """A setting in an object of settings changes when a round ends, and a list of parameters is used."""

    def prepare(self) -> None:
        self.config: Any = SimpleNamespace(penalise=False)
        self.penalised = [p for p in self.layers.parameters() if p.dim() > 1]

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        return loss + 0.1 * sum(p.square().sum() for p in self.penalised) if self.says_so() else loss

    def says_so(self) -> bool:
        return self.config.penalise

    def on_train_epoch_end(self) -> None:
        self.config.penalise = True


class FlagInGlobal(FlagInNamespace):
    """The same, in a global."""

    def prepare(self) -> None:
        super().prepare()
        FLAGS["penalise"] = False

    def says_so(self) -> bool:
        return FLAGS["penalise"]

    def on_train_epoch_end(self) -> None:
        FLAGS["penalise"] = True


class FlagInTensor(FlagInNamespace):
    """The same, in a tensor that is no buffer."""

    def prepare(self) -> None:
        super().prepare()
        self.flag = torch.zeros(())

    def says_so(self) -> bool:
        return bool(self.flag > 0)

    def on_train_epoch_end(self) -> None:
        self.flag.fill_(1)


class FlagInClass(FlagInNamespace):
    """The same, in the class."""

    penalise = False

    def prepare(self) -> None:
        super().prepare()
        type(self).penalise = False

    def says_so(self) -> bool:
        return self.penalise

    def on_train_epoch_end(self) -> None:
        type(self).penalise = True


class FlagInOtherClass(FlagInNamespace):
    """The same, in a class of settings."""

    def prepare(self) -> None:
        super().prepare()
        Settings.penalise = False

    def says_so(self) -> bool:
        return Settings.penalise

    def on_train_epoch_end(self) -> None:
        Settings.penalise = True


class FlagInModule(FlagInNamespace):
    """The same, in a module of settings."""

    def prepare(self) -> None:
        super().prepare()
        settings.PENALISE = False

    def says_so(self) -> bool:
        return settings.PENALISE

    def on_train_epoch_end(self) -> None:
        settings.PENALISE = True


class FlagOfFunction(FlagInNamespace):
    """The same, in a global that only a function called reads."""

    def prepare(self) -> None:
        super().prepare()
        settings.PENALISE = False

    def says_so(self) -> bool:
        return settings.penalises()

    def on_train_epoch_end(self) -> None:
        settings.set_penalise()


class SettingOfLoss(Classifier):
    """A criterion whose setting changes between rounds."""

    def prepare(self) -> None:
        self.criterion = nn.CrossEntropyLoss()

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return self.criterion(self(batch[0]), batch[1])

    def on_train_epoch_end(self) -> None:
        self.criterion.label_smoothing = 0.1 * (1 + self.current_epoch)


class AnnealedByObject(Classifier):
    """An object gives the weight of a penalty and moves on when a round ends."""

    def prepare(self) -> None:
        self.annealer = SimpleNamespace(weight=0.0)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return super().loss(batch, batch_idx) + self.annealer.weight * self.layers[0].weight.square().sum()

    def on_train_epoch_end(self) -> None:
        self.annealer.weight += 0.05


class Settings:
    """Settings of a user's own."""

    penalise = False


FLAGS: dict[str, bool] = {}
ENTRIES = [
    entry("list used when a namespace says so", FlagInNamespace),
    entry("list used when a global says so", FlagInGlobal),
    entry("list used when a tensor says so", FlagInTensor),
    entry("list used when the class says so", FlagInClass),
    entry("list used when another class says so", FlagInOtherClass),
    entry("list used when a module of settings says so", FlagInModule),
    entry("list used when a function says so", FlagOfFunction),
    entry("setting of a criterion changes", SettingOfLoss),
    entry("weight of an annealer", AnnealedByObject),
]
