"""Modules whose memory of earlier batches changes what they do: running weights, queues, hard cases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.entry import CLASSES, Entry
from zoo.modules.base import Classifier


class LossScale(Classifier):
    """Scales by a running mean of losses that all clients share."""

    def prepare(self) -> None:
        self.running = 1.0

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        self.running = 0.9 * self.running + 0.1 * loss.item()
        return loss / self.running


class RunningClassWeights(Classifier):
    """Weighs classes by how often it has seen them."""

    def prepare(self) -> None:
        self.counts = torch.ones(CLASSES, dtype=torch.float64)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        self.counts += F.one_hot(y, CLASSES).sum(0)
        return F.cross_entropy(self(x), y, weight=self.counts.sum() / self.counts)


class MemoryBank(Classifier):
    """A queue of features in a buffer with a pointer, as in MoCo."""

    def prepare(self) -> None:
        self.register_buffer("queue", F.normalize(torch.randn(8, CLASSES), dim=1))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, _ = batch
        features = F.normalize(self(x), dim=1)
        positive = (features * F.normalize(self(1.1 * x), dim=1).detach()).sum(1, keepdim=True)
        logits = torch.cat([positive, features @ self.queue.T.clone()], dim=1) / 0.2
        self.enqueue(features.detach())
        return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        places = (self.pointer + torch.arange(len(keys))) % 8
        self.queue[places] = keys
        self.pointer[0] = (self.pointer[0] + len(keys)) % 8


ENTRIES = [
    Entry("running loss scale", LossScale, alone="changes what clients share"),
    Entry("running class weights", RunningClassWeights, alone="changes what clients share", long=True),
    Entry("queue with a pointer", MemoryBank),
]
