"""Steps that depend on how many samples a batch has, where one client alone has a small last batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.entry import Data, Entry, vectors
from zoo.modules.base import Classifier, changed, losing


def ending(rest: int) -> Any:
    """Return data of whole batches, but for one client, whose last batch has so many samples."""

    def data(sizes: Sequence[int], dtype: torch.dtype) -> Data:
        return vectors([12 + rest if client == 4 else 16 for client in range(len(sizes))], dtype)

    return data


class LogsSizes(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch, batch_idx)
        self.log("few", float(min(len(batch[1]), 3)), on_step=False, on_epoch=True)
        self.log("size", float(len(batch[1])), on_step=True, on_epoch=True, reduce_fx="sum")
        self.log("weighted", loss, on_step=False, on_epoch=True, batch_size=min(len(batch[1]), 3))
        return loss


class AtSmallRates(Classifier):
    """Weighs small batches once the learning rate, which falls by step, is small."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        is_late = len(batch[1]) < 4 and self.trainer.optimizers[0].param_groups[0]["lr"] < 0.04
        return super().loss(batch, batch_idx) * (3 if is_late else 1)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def few(batch: Any) -> int:
    return min(len(batch[1]), 3)


def halves(module: Any, x: Tensor, y: Tensor) -> Tensor:
    first, second = module(x).chunk(2)
    return F.cross_entropy(module(x), y) + (first.mean(0) - second.mean(0)).square().sum()


ENTRIES = [
    changed("scaled by few samples, 3 left", lambda m, loss, b, i: loss * few(b), ending(3)),
    losing("halves of a batch", halves, ending(2)),
    Entry("logs sizes", LogsSizes, ending(2)),
    changed("few count twice later", lambda m, loss, b, i: 2 * loss if len(b[1]) < 4 and i else loss, ending(3)),
    Entry("few count more at small rates", AtSmallRates, ending(3)),
    changed("number of .item() in the loss", lambda m, loss, b, i: loss / (1 + loss.item())),
]
LONG = [changed("type of batch_idx", lambda m, loss, b, i: loss * (2.0 if isinstance(i, int) else 1.0))]
