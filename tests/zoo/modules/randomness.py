"""Modules that draw random numbers while they train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import CLASSES, UNEQUAL, WHOLE, Entry, images, one_by_one
from zoo.modules.base import Classifier, perceptron


class GumbelSoftmax(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        gates = F.gumbel_softmax(self.layers[0](x), tau=0.7)
        return F.cross_entropy(self.layers[2](gates), y)


class MixupOfTorch(Classifier):
    """Mixes with a weight and an order that torch draws."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        weight = torch.distributions.Beta(torch.tensor(0.4), torch.tensor(0.4)).sample().to(x.dtype)
        order = torch.randperm(x.size(0), device=x.device)
        mixed = self(torch.lerp(x[order], x, weight))
        return torch.lerp(F.cross_entropy(mixed, y[order]), F.cross_entropy(mixed, y), weight)


class Reinforce(Classifier):
    """Samples actions and learns from their rewards."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        policy = torch.distributions.Categorical(logits=self(x))
        action = policy.sample()
        return -(policy.log_prob(action) * (action == y).to(x.dtype)).mean()


class DropsSometimes(Classifier):
    """Begins to drop units in the second epoch: the first batches draw nothing."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(F.dropout(x, 0.3, training=self.current_epoch > 0)), y)


def conv(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), *between, nn.Flatten(), nn.Linear(64, CLASSES))


class Draws(Classifier):
    """Multiplies its inputs by what a function of them draws."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x * self.draw(x).to(x.dtype)), y)


def draws(name: str, draw: Callable[[Tensor], Tensor]) -> Entry:
    return Entry(name, lambda: Draws(draw))


def seeds(x: Tensor) -> Tensor:
    torch.manual_seed(len(x))
    return torch.rand(x.shape)


def filled(x: Tensor) -> Tensor:
    noise = torch.zeros(x.shape)
    noise.normal_(0, 0.3)
    return noise


def normal_by_name(x: Tensor) -> Tensor:
    return torch.normal(mean=1.0, std=2.0, size=tuple(x.shape))


def draws_more(x: Tensor) -> Tensor:
    torch.rand(3)
    return torch.rand(x.shape)


def in_place(x: Tensor) -> Tensor:
    return F.dropout(x.t().clone(memory_format=torch.preserve_format), 0.4, inplace=True).t()


class Augmented(Classifier):
    """Adds noise to each batch before the step, and drops units in it."""

    def __init__(self) -> None:
        super().__init__(perceptron(nn.Dropout(0.0), nn.Dropout(0.3)))

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1]


class LearnsFromBeta(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return super().loss(batch, batch_idx) + torch.distributions.Beta(self(batch[0]).exp(), 1.0).rsample().mean()


ENTRIES = [
    Entry("Dropout", lambda: Classifier(perceptron(nn.Dropout(0.3))), sizes=UNEQUAL),
    Entry("dropout from the second epoch on", DropsSometimes, long=True),
    draws("uniform, and normal by name", lambda x: torch.rand(x.shape) + normal_by_name(x)),
    Entry("mixup with torch's Beta", MixupOfTorch),
    Entry("a draw of no use before another", lambda: Draws(draws_more), sizes=WHOLE, by_hand=False),
    *one_by_one(Entry("augmentation and dropout", Augmented), draws("seeds in the step", seeds)),
]
LONG = [
    draws("dropout in place", in_place),
    Entry("Dropout2d", lambda: Classifier(conv(nn.Dropout2d(0.3))), images),
    Entry("AlphaDropout", lambda: Classifier(perceptron(nn.AlphaDropout(0.2)))),
    Entry("Gumbel softmax", GumbelSoftmax),
    Entry("samples actions", Reinforce),
    draws("randint between", lambda x: torch.randint(2, 7, x.shape)),
    draws("randint_like", lambda x: torch.randint_like(x, 2, 7)),
    draws("Gamma", lambda x: torch.distributions.Gamma(x.abs() + 1, 2.0).sample()),
    draws("dropout of what is transposed", lambda x: F.dropout(x.t(), 0.4).t()),
    draws("dropout of a number", lambda x: F.dropout(torch.ones(x.shape), 0.4)),
    draws("all is dropped", lambda x: F.dropout(x, 1.0)),
    *one_by_one(
        Entry("RReLU", lambda: Classifier(perceptron(nn.RReLU()))),
        Entry("learns from a Beta distribution", LearnsFromBeta),
        draws("Dirichlet", lambda x: torch.distributions.Dirichlet(torch.ones(x.shape[-1])).sample((len(x),))),
        draws("torch.dropout of what is transposed", lambda x: torch.dropout(x.t(), 0.4, True).t()),
        draws("normal_ of a name", filled),
    ),
]
