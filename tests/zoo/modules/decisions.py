"""Steps in which Python decides by the values of tensors, of which each client has its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zoo.entry import Entry
from zoo.modules.base import Classifier, perceptron


class ChecksLoss(Classifier):
    """Asserts that the loss is a number, as debugged modules do."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        assert torch.isfinite(loss), f"loss in batch {batch_idx}"
        return loss


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


class HalvesUntilSmall(Classifier):
    """A loop whose length depends on values."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        while loss > 0.8:
            loss = loss / 2
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


class Skips(Classifier):
    """Leaves batches without a class out."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss if (batch[1] == 0).any() else None


def decides(name: str, kind: type[Classifier], **options: Any) -> Entry:
    """Return an entry."""
    return Entry(name, kind, **options)


ENTRIES = [
    decides("asserts that the loss is finite", ChecksLoss),
    decides("penalty if a class is there", PenaltyIfClassIsThere),
    decides("penalty if a class is there, accumulated", PenaltyIfClassIsThere, trainer={"accumulate_grad_batches": 2}),
    Entry("penalty if a class is there, with dropout", lambda: PenaltyIfClassIsThere(perceptron(nn.Dropout(0.3)))),
    decides("term where it is large", SkipsSmallTerm),
    decides("while by a value", HalvesUntilSmall),
    decides("draws to decide", DrawsToDecide),
    decides("counts large losses", CountsSpikes),
    decides("returns None for some values", Skips),
]
