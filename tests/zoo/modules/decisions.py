"""Steps in which Python decides by the values of tensors, of which each client has its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from zoo.entry import Data, Entry, alike, vectors
from zoo.modules.base import Classifier, changed, perceptron, squares


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


class DrawsToDecide(Classifier):
    """Leaves a layer out at random, by Python."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layers[1](self.layers[0](x))
        if self.training and torch.rand(()) < 0.3:
            hidden = hidden.detach()
        return self.layers[2](hidden)


class CountsSpikes(Classifier):
    """Counts in the module how often the loss is large."""

    def prepare(self) -> None:
        self.spikes = 0

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        if loss > 1.05:
            self.spikes += 1
        return loss


class Nested(Classifier):
    """Decides twice, logs in one way alone, and has a loop."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        if batch[0].mean() > 0:
            self.log("rare", 1.0, on_step=False, on_epoch=True)
            return loss * (3 if loss > 1 else 2)
        while loss > 1.05:
            loss = loss / 2
        return loss


class IsTrue(Classifier):
    """Compares truth values with True."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss, first = super().loss(batch, batch_idx), batch[0].mean()
        loss = 2 * loss if (first > 0).item() is True else loss
        match first.isnan().logical_not().item() and (first.item() > 0.2):
            case True:
                return 3 * loss
            case _:
                return loss


class Acts(Classifier):
    """Does something for a single client's batches: client 4's, from its second batch on."""

    def __init__(self, act: Callable[[Any, Tensor, int], Any], **held: Any) -> None:
        super().__init__()
        self.act = act
        for name, value in held.items():
            setattr(self, name, value)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        if batch[0][0, 0] > 50 and batch_idx > 0:
            factor = self.act(self, loss, batch_idx)
            return loss if factor is None else loss * factor
        return loss

    def on_train_epoch_end(self) -> None:
        if hasattr(self, "mean"):
            self.log("rare", self.mean.compute())
            self.mean.reset()


def marked(sizes: Sequence[int], dtype: torch.dtype) -> Data:
    """Return clients of whom one has large first inputs."""
    data = vectors([12 for _ in sizes], dtype)
    data.clients[4][0][:, 0] = 100.0
    return data


def rare(name: str, act: Callable[[Any, Tensor, int], Any], alone: str = "", **held: Any) -> Entry:
    return Entry(name, lambda: Acts(act, **{key: make() for key, make in held.items()}), marked, alone=alone)


def count_in_class(module: Any, loss: Tensor, index: int) -> None:
    type(module).seen = getattr(type(module), "seen", 0) + 1


class Computes(Classifier):
    """Logs what Python computes with a number of a tensor, and 9 where it raises an exception."""

    def __init__(self, compute: Callable[[Any], Any], whole: bool) -> None:
        super().__init__()
        self.compute, self.whole = compute, whole

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        number = batch[1][0].item() if self.whole else batch[1][0].to(batch[0].dtype).item()
        try:
            result = self.compute(number)
        except (ArithmeticError, ValueError):
            result = 9.0
        self.log("number", result, on_step=False, on_epoch=True)
        return super().loss(batch, batch_idx)


def computes(name: str, compute: Callable[[Any], Any], whole: bool = False, alone: str = "") -> Entry:
    """Return an entry that computes with the number of a batch's first class: 0, 1 or 2."""
    return Entry(name, lambda: Computes(compute, whole), alone=alone)


def asserts(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    assert torch.isfinite(loss), f"loss in batch {index}"
    return loss


def halves(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    """A loop whose length depends on values."""
    while loss > 0.8:
        loss = loss / 2
    return loss


def holds(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    zeros = torch.zeros_like(batch[0][0])
    return 2 * loss if 0 in batch[1] or torch.allclose(zeros, batch[0][0], atol=0.5) else loss


def up_and_down(module: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    """Counts up and down again, without `try`: what is broken off halfway leaves the number changed."""
    module.depth = getattr(module, "depth", 0) + 1
    weight = 2 if batch[0].mean() > 0 else 1
    module.depth -= 1
    return weight * loss


ENTRIES = [
    changed("asserts that the loss is finite", asserts, long=True),
    Entry("penalty if a class is there", PenaltyIfClassIsThere),
    Entry(
        "penalty if a class is there, accumulated",
        PenaltyIfClassIsThere,
        trainer={"accumulate_grad_batches": 2},
        long=True,
    ),
    Entry(
        "penalty if a class is there, with dropout",
        lambda: PenaltyIfClassIsThere(perceptron(nn.Dropout(0.3))),
        long=True,
    ),
    Entry("term where it is large", SkipsSmallTerm, long=True),
    changed("while by a value", halves, long=True),
    Entry("draws to decide", DrawsToDecide, alone="unequal use of parameters", long=True),
    Entry("counts large losses", CountsSpikes, alone="changes what clients share", long=True),
    Entry("decides twice", Nested),
    changed("larger of two losses", lambda m, loss, b, i: max(loss, b[0].mean() + squares(m)), long=True),
    Entry("compares with True", IsTrue, long=True),
    changed("in and allclose", holds, long=True),
    changed("counts up and down", up_and_down, alone="changes what clients share"),
    *alike(
        rare("rare factor", lambda m, loss, index: 2.0),
        rare("rare count", lambda m, loss, index: m.seen.append(index), "changes what clients share", seen=list),
        rare("rare count in the class", count_in_class, "changes what clients share"),
        rare("rare draw", lambda m, loss, index: 1 + torch.rand(()), "draws in some ways"),
        rare("rare use of current_epoch", lambda m, loss, index: 1 + m.current_epoch, "reads the trainer"),
        rare(
            "rare metric",
            lambda m, loss, index: m.mean.update(loss.detach()),
            "rare metric",
            mean=MeanMetric,
        ),
    ),
    *alike(
        computes("quotient of a number", lambda v: 2 / v, alone="computes with numbers"),
        computes("whole quotient", lambda v: 9 // v, alone="computes with numbers"),
        computes("rest of a division", lambda v: 9 % v, True, alone="computes with numbers"),
        computes("power of a number", lambda v: v**-1, alone="computes with numbers"),
        computes("root of a negative number", lambda v: abs((v - 1) ** 0.5), alone="computes with numbers"),
        computes(
            "power that overflows",
            lambda v: 1.0 if (1e160 * v) ** 2 > 10 else 0.0,
            alone="computes with numbers",
        ),
        computes("large whole power", lambda v: (20.0 * v) ** 400 * 0, True, alone="computes with numbers"),
        computes(
            "rounded number",
            lambda v: round(v * float("inf")) if v > 1 else round(v + 0.25),
            alone="computes with numbers",
        ),
        computes("shifted number", lambda v: 1 << (v - 1), True, alone="computes with numbers"),
        computes("whole number of 65 bits", lambda v: ((v + 3037000499) ** 2 + 7) % 10, True),
        computes("number of numpy", lambda v: np.float64(2.0) * v),
        computes("sum of truth values", lambda v: (v > 0) + (v < 2)),
        computes("arithmetic", lambda v: abs(-(2 * v) + 1) / 2 - v // 3 + v**2 - (v + 1) % 2),
        computes("number in a list", lambda v: 3.0 if v in [2.0] else 1.0),
        computes("number in a set", lambda v: 3.0 if v in {2.0} else 1.0, alone="hashes a number"),
        computes("key of a dictionary", lambda v: {2.0: 3.0}.get(v, 1.0), alone="hashes a number"),
        computes("number as text", lambda v: 3.0 if str(v) == "2.0" else 1.0, alone="makes a text of a number"),
        computes("type of a number", lambda v: 1.0 if isinstance(v, float) else 3.0),
    ),
]
