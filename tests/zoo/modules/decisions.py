"""Steps in which Python decides by the values of tensors, of which each client has its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from zoo.entry import Entry, one_by_one
from zoo.modules.base import Classifier, changed, squares


class PenaltyIfClassIsThere(Classifier):
    """A penalty for batches with samples of the first class."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        if (batch[1] == 0).any():
            loss = loss + 0.01 * sum(p.square().sum() for p in self.parameters())
        return loss


class SkipsSmallTerm(Classifier):
    """A second term where its number is large, which is logged there only."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        spread = self(batch[0]).std()
        if spread.item() > 0.5:
            self.log("spread", spread, on_step=False, on_epoch=True)
            loss = loss + 0.1 * spread
        return loss


class Computes(Classifier):
    """Logs what Python computes with a number of a tensor, and 9 where it raises an exception."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        super().__init__()
        self.compute = compute

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        number = batch[1][0].to(batch[0].dtype).item()
        try:
            result = self.compute(number)
        except (ArithmeticError, ValueError):
            result = 9.0
        self.log("number", result, on_step=False, on_epoch=True)
        return super().loss(batch, batch_idx)


def computes(name: str, compute: Callable[[Any], Any]) -> Entry:
    """Return an entry that computes with the number of a batch's first class: 0, 1 or 2."""
    return Entry(name, lambda: Computes(compute))


def up_and_down(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    """Counts up and down again, without `try`: what is broken off halfway leaves the number changed."""
    module.depth = getattr(module, "depth", 0) + 1
    weight = 2 if batch[0].mean() > 0 else 1
    module.depth -= 1
    return weight * loss


ENTRIES = [
    *one_by_one(
        Entry("penalty if a class is there", PenaltyIfClassIsThere),
        changed("counts up and down", up_and_down),
        computes("quotient of a number", lambda v: 2 / v),
        computes("number as text", lambda v: 3.0 if str(v) == "2.0" else 1.0),
    ),
]
LONG = [
    changed("larger of two losses", lambda m, loss, b, i: max(loss, b[0].mean() + squares(m))),
    computes("arithmetic", lambda v: abs(-(2 * v) + 1) / 2 - v // 3 + v**2 - (v + 1) % 2),
    computes("type of a number", lambda v: 1.0 if isinstance(v, float) else 3.0),
    *one_by_one(
        Entry("term where it is large", SkipsSmallTerm),
        computes("number of numpy", lambda v: np.float64(2.0) * v),
    ),
]
