"""Normalisation layers and their buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import CLASSES, Data, Entry, images, vectors
from zoo.modules.base import Classifier, perceptron


def conv(norm: nn.Module, bias: bool = True) -> nn.Module:
    head = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, CLASSES))
    return nn.Sequential(nn.Conv2d(2, 4, 3, bias=bias), norm, nn.ReLU(), *head)


class RootMeanSquareNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class RunningInputMean(Classifier):
    """Keeps a running mean of its inputs in a buffer, by assignment."""

    def prepare(self) -> None:
        self.register_buffer("running", torch.zeros(6))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        self.running = 0.9 * self.running + 0.1 * x.mean(0)
        return F.cross_entropy(self(x - self.running), y)


class RunningInputMeanInPlace(RunningInputMean):
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


def no_single_samples(sizes: Sequence[int], dtype: torch.dtype) -> Data:
    """Return vectors without batches of one sample, which BatchNorm refuses."""
    return vectors([size + (size % 4 == 1) for size in sizes], dtype)


ENTRIES = [
    Entry("BatchNorm1d", lambda: Classifier(perceptron(nn.BatchNorm1d(5))), no_single_samples, long=True),
    Entry("BatchNorm2d, convolution with bias", lambda: Classifier(conv(nn.BatchNorm2d(4))), images),
    Entry("BatchNorm2d, no bias", lambda: Classifier(conv(nn.BatchNorm2d(4), bias=False)), images, long=True),
    Entry(
        "BatchNorm2d, cumulative",
        lambda: Classifier(conv(nn.BatchNorm2d(4, momentum=None))),
        images,
        long=True,
        alone="a number of a tensor",
    ),
    Entry("LayerNorm", lambda: Classifier(perceptron(nn.LayerNorm(5))), long=True),
    Entry("GroupNorm", lambda: Classifier(conv(nn.GroupNorm(2, 4))), images, long=True),
    Entry("InstanceNorm", lambda: Classifier(conv(nn.InstanceNorm2d(4, affine=True))), images, long=True),
    Entry(
        "InstanceNorm with statistics",
        lambda: Classifier(conv(nn.InstanceNorm2d(4, affine=True, track_running_stats=True))),
        images,
        long=True,
    ),
    Entry("RMSNorm by hand", lambda: Classifier(perceptron(RootMeanSquareNorm(5))), long=True),
    Entry("BatchNorm in eval mode", FrozenNorm, images),
    Entry("running mean by assignment", RunningInputMean, long=True),
    Entry("running mean in place", RunningInputMeanInPlace, long=True),
    Entry("counter in an integer buffer", CountsBatches, long=True),
    Entry("constant buffers, some infinite", ConstantBuffers),
]
