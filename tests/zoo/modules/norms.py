"""Normalisation layers, and other buffers that a step reads or writes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import CLASSES, UNEQUAL, Entry, images, one_by_one
from zoo.modules.base import Classifier


def conv(norm: nn.Module, bias: bool = True) -> nn.Module:
    head = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES))
    return nn.Sequential(nn.Conv2d(2, 4, 3, bias=bias), norm, nn.ReLU(), *head)


class RunningInputMean(Classifier):
    """Keeps a running mean of its inputs in a buffer, in place."""

    def prepare(self) -> None:
        self.register_buffer("running", torch.zeros(6))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        self.running.mul_(0.9).add_(0.1 * x.mean(0))
        return F.cross_entropy(self(x - self.running.clone()), y)


class CountsBatches(Classifier):
    """Counts its batches in an integer buffer and anneals by it."""

    def prepare(self) -> None:
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        self.batches += 1
        return super().loss(batch, batch_idx) / self.batches


class FrozenNorm(Classifier):
    """BatchNorm stays in eval mode, as in detection models."""

    def __init__(self) -> None:
        super().__init__(conv(nn.BatchNorm2d(4)))
        self.layers[1].eval().requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        self.layers[1].eval()


class ConstantBuffers(Classifier):
    """A causal mask with infinite values, a table of positions and a table of indices."""

    def prepare(self) -> None:
        self.register_buffer("mask", torch.full((6, 6), float("-inf")).triu(1))
        self.register_buffer("positions", torch.linspace(0, 1, 6), persistent=False)
        self.register_buffer("order", torch.arange(5, -1, -1))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        scores = (x[:, :, None] * x[:, None, :] + self.mask).softmax(-1)
        return F.cross_entropy(self((scores @ x[:, self.order, None]).squeeze(-1) + self.positions), y)


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
    Entry("BatchNorm2d, convolution with bias", lambda: Classifier(conv(nn.BatchNorm2d(4))), images),
    Entry("constant buffers, some infinite", ConstantBuffers),
    Entry("queue with a pointer", MemoryBank, sizes=UNEQUAL, long=True),
]
LONG = [
    Entry("BatchNorm in eval mode", FrozenNorm, images),
    Entry(
        "InstanceNorm with statistics",
        lambda: Classifier(conv(nn.InstanceNorm2d(4, affine=True, track_running_stats=True))),
        images,
    ),
    Entry("running mean in place", RunningInputMean),
    *one_by_one(
        Entry("BatchNorm2d, cumulative", lambda: Classifier(conv(nn.BatchNorm2d(4, momentum=None))), images),
        Entry("counter in an integer buffer", CountsBatches),
    ),
]
