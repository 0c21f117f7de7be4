"""Parts that are frozen, follow other parts, are tied, or are held to a set."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from zoo.entry import CLASSES, FEATURES, Entry, one_by_one
from zoo.modules.base import Classifier, changed, losing, perceptron, prepared


class FrozenBackbone(Classifier):
    """Features of a network in eval mode without gradients, as in Lightning's guide to transfer learning."""

    def prepare(self) -> None:
        self.backbone = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.BatchNorm1d(FEATURES), nn.Dropout(0.5))
        self.backbone.eval().requires_grad_(False)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        self.backbone.eval()
        with torch.no_grad():
            features = self.backbone(x)
        return F.cross_entropy(self(features), y)


class MomentumTeacher(Classifier):
    """A frozen copy of the network follows it in each step, as in BYOL."""

    def prepare(self) -> None:
        self.teacher = copy.deepcopy(self.layers).requires_grad_(False)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        with torch.no_grad():
            for own, other in zip(self.teacher.parameters(), self.layers.parameters(), strict=True):
                own.lerp_(other, 0.1)
            target = self.teacher(x)
        return F.cross_entropy(self(x), y) + F.mse_loss(self(x), target)


class Held(Classifier):
    """Regularises through a list of parameters that was made at the start."""

    def prepare(self) -> None:
        self.penalised = [p for p in self.layers.parameters() if p.dim() > 1]

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return super().loss(batch, batch_idx) + 0.1 * sum(p.square().sum() for p in self.penalised)


def unit_rows(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """Projects the rows of a weight onto the sphere before each step."""
    with torch.no_grad():
        module.layers[0].weight.div_(module.layers[0].weight.norm(dim=1, keepdim=True))
    return F.cross_entropy(module(x), y)


def unit_rows_by_data(module: Any, x: Tensor, y: Tensor) -> Tensor:
    module.layers[0].weight.data = F.normalize(module.layers[0].weight.data, dim=1)
    return F.cross_entropy(module(x), y)


def bias_by_data(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """Halves a bias when the loss is there already, so that no loss of this step tells of it."""
    loss = F.cross_entropy(module(x), y)
    module.layers[2].bias.data = module.layers[2].bias * 0.5
    return loss


class MeanByData(Classifier):
    """Assigns a buffer's values."""

    def prepare(self) -> None:
        self.register_buffer("mean", torch.zeros(()))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        self.mean.data = 0.9 * self.mean + loss.detach()
        return loss


def penalty_of_optimizer(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    """A penalty on the weights that the optimizer holds."""
    return loss + 1e-3 * sum(p.square().sum() for p in module.trainer.optimizers[0].param_groups[0]["params"])


class Asks(Classifier):
    """Weighs its loss by what tensors say of their gradients."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self(batch[0])
        said = [
            batch[0].requires_grad,
            scores.requires_grad,
            scores.detach().requires_grad,
            self.layers[0].weight.is_leaf,
        ]
        return F.cross_entropy(scores, batch[1]) * (1 + sum(2.0**-place for place, true in enumerate(said) if true))


class Odd(Classifier):
    """Uses a parameter on every second batch."""

    def prepare(self) -> None:
        self.offset = nn.Parameter(torch.ones(CLASSES))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self(batch[0])
        return F.cross_entropy(scores + self.offset if batch_idx % 2 else scores, batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)


class Scripted(Classifier):
    def __init__(self) -> None:
        super().__init__(torch.jit.script(perceptron()))


ENTRIES = [
    Entry("frozen backbone in eval mode", FrozenBackbone),
    Entry("teacher follows in training_step", MomentumTeacher),
    Entry("tensors tell of gradients", Asks),
    Entry("buffer by .data", MeanByData),
    *one_by_one(
        losing("bias by .data", bias_by_data),
        Entry("parameter used every second batch", Odd, trainer={"accumulate_grad_batches": 2}),
    ),
]
LONG = [
    Entry("penalty through a list", Held),
    prepared("weight_norm", lambda m: parametrizations.weight_norm(m.layers[0])),
    prepared("spectral_norm", lambda m: parametrizations.spectral_norm(m.layers[0])),
    changed("penalty by the optimizer's list", penalty_of_optimizer),
    *one_by_one(
        losing("unit rows under no_grad", unit_rows),
        losing("unit rows by .data", unit_rows_by_data),
        Entry("scripted layers", Scripted),
    ),
]
