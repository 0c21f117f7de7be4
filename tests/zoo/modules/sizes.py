"""Steps that depend on how many samples a batch has, where one client alone has a small last batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.entry import Data, Entry, vectors
from zoo.modules.base import Classifier


def ending(rest: int) -> Any:
    """Return data of whole batches, but for one client, whose last batch has so many samples."""

    def data(sizes: Sequence[int], dtype: torch.dtype) -> Data:
        return vectors([12 + rest if client == 4 else 16 for client in range(len(sizes))], dtype)

    return data


class ScaledByFew(Classifier):
    """The number of samples counts up to three."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return super().loss(batch, batch_idx) * min(len(batch[1]), 3)


class SkipsSingles(Classifier):
    """Leaves batches of one sample out, as contrastive losses must."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        return 0 * loss if len(batch[1]) == 1 else loss


class PenaltyForFew(Classifier):
    """Regularises small batches more."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        if batch[0].shape[0] <= 2:
            loss = loss + 0.1 * self.layers[0].weight.square().sum()
        return loss


class FirstThree(Classifier):
    """Trains on the first three samples of a batch."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x[:3]), y[:3])


class LastSample(Classifier):
    """Counts the last sample twice."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y) + F.cross_entropy(self(x[-1:]), y[-1:])


class Halves(Classifier):
    """Compares the first half of a batch with the second."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        first, second = self(x).chunk(2)
        return F.cross_entropy(self(x), y) + (first.mean(0) - second.mean(0)).square().sum()


class Neighbours(Classifier):
    """Mixes each sample with the one before."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(0.7 * x + 0.3 * x.roll(1, 0))
        return 0.7 * F.cross_entropy(logits, y) + 0.3 * F.cross_entropy(logits, y.roll(1, 0))


class Centred(Classifier):
    """Subtracts a batch's mean and divides by its spread."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self((x - x.mean(0)) / (x.std(0, unbiased=False) + 1)), y)


class SumOverSize(Classifier):
    """The mean by hand."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y, reduction="sum") / x.size(0)


class OverFullSize(Classifier):
    """Divides by the size of a full batch, whatever the batch has."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y, reduction="sum") / 4


class LogsSizes(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        self.log("few", float(min(len(batch[1]), 3)), on_step=False, on_epoch=True)
        self.log("size", float(len(batch[1])), on_step=True, on_epoch=True, reduce_fx="sum")
        self.log("weighted", loss, on_step=False, on_epoch=True, batch_size=min(len(batch[1]), 3))
        return loss


class NumberInTheLoss(Classifier):
    """Divides by a number that Python read."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        return loss / (1 + loss.item())


class ChecksIndexType(Classifier):
    """Looks at what kind of a number the batch's index is."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return super().loss(batch, batch_idx) * (2.0 if isinstance(batch_idx, int) else 1.0)


ENTRIES = [
    *(Entry(f"scaled by few samples, {rest} left", ScaledByFew, ending(rest)) for rest in (1, 2, 3)),
    Entry("single samples skipped", SkipsSingles, ending(1)),
    Entry("penalty for small batches", PenaltyForFew, ending(2)),
    Entry("first three samples", FirstThree, ending(2)),
    Entry("last sample twice", LastSample, ending(1)),
    Entry("halves of a batch", Halves, ending(2)),
    Entry("mixed with the sample before", Neighbours, ending(2)),
    Entry("batch centred", Centred, ending(2)),
    Entry("mean by hand", SumOverSize, ending(1)),
    Entry("over the full size", OverFullSize, ending(1)),
    Entry("logs sizes", LogsSizes, ending(2)),
    Entry("number of .item() in the loss", NumberInTheLoss),
    Entry("type of batch_idx", ChecksIndexType),
]
