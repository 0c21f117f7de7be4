"""Losses: weighted, smoothed, contrastive, distilled, with learnt weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import FEATURES, Entry, one_by_one
from zoo.modules.base import Classifier, losing


class GradientPenalty(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        x = x.clone().requires_grad_(True)
        loss = F.cross_entropy(self(x), y)
        [gradient] = torch.autograd.grad(loss, x, create_graph=True)
        return loss + gradient.square().sum()


class Scored(Classifier):
    """Has a loss of scores of any number, inputs and classes, and logs it each step."""

    def __init__(self, of: Callable[[Tensor, Tensor, Tensor], Tensor], width: int) -> None:
        super().__init__(nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, width)))
        self.of = of

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self(batch[0].flatten(1))
        self.log("mean", torch.sigmoid(scores[:, 0]).mean(), on_step=True, on_epoch=True)
        return self.of(scores, batch[0], batch[1])


def scored(name: str, of: Callable[[Tensor, Tensor, Tensor], Tensor], width: int = 1) -> Entry:
    return Entry(name, lambda: Scored(of, width))


class StepsBack(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        loss.backward(retain_graph=True)
        return loss


def hard(module: Any, x: Tensor, y: Tensor) -> Tensor:
    """Keeps the hard samples: data-dependent control and shapes."""
    losses = F.cross_entropy(module(x), y, reduction="none")
    kept = losses[losses > losses.mean()]
    return kept.mean() if len(kept) else losses.mean()


def summed(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(module(x), dim=1), y, reduction="sum") / 10


ENTRIES = [
    scored("mean squared error, squeezed", lambda s, x, y: F.mse_loss(s.squeeze(1), y.to(s.dtype))),
    *one_by_one(
        losing("hard samples by mask", hard),
        Entry("gradients inside of the step", StepsBack),
    ),
]
LONG = [
    *one_by_one(
        Entry("gradient penalty", GradientPenalty),
    ),
]
