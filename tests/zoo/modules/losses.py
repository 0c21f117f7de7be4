"""Losses of squares, of hard samples, and with gradients of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.entry import Entry, one_by_one
from zoo.modules.base import Classifier, losing


class GradientPenalty(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        x = x.clone().requires_grad_(True)
        loss = F.cross_entropy(self(x), y)
        [gradient] = torch.autograd.grad(loss, x, create_graph=True)
        return loss + gradient.square().sum()


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


ENTRIES = [
    losing("mean squared error, squeezed", lambda m, x, y: F.mse_loss(m(x)[:, :1].squeeze(1), y.to(x.dtype))),
    *one_by_one(losing("hard samples by mask", hard), Entry("gradients inside of the step", StepsBack)),
]
LONG = [*one_by_one(Entry("gradient penalty", GradientPenalty))]
