"""Modules that draw random numbers while they train."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import CLASSES, FEATURES, Entry, images
from zoo.modules.base import Classifier, perceptron


class GaussianNoise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x) if self.training else x


class DropPath(nn.Module):
    """Stochastic depth as timm has it: whole samples of a residual branch are dropped."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.keep = 1 - probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(self.keep)
        return x * mask / self.keep


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.drop_path = nn.Linear(width, width), DropPath(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop_path(F.gelu(self.linear(x)))


class StochasticDepth(Classifier):
    def __init__(self) -> None:
        super().__init__(perceptron(Residual(5), Residual(5)))


class GumbelSoftmax(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        gates = F.gumbel_softmax(self.layers[0](x), tau=0.7)
        return F.cross_entropy(self.layers[2](gates), y)


class Mixup(Classifier):
    """Mixes each sample with another of its batch; the weight comes from numpy, as in the paper's code."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        weight = float(np.random.beta(1.0, 1.0))
        order = torch.randperm(len(x))
        logits = self(weight * x + (1 - weight) * x[order])
        return weight * F.cross_entropy(logits, y) + (1 - weight) * F.cross_entropy(logits, y[order])


class MixupOfTorch(Classifier):
    """Mixes with a weight and an order that torch draws."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        weight = torch.distributions.Beta(torch.tensor(0.4), torch.tensor(0.4)).sample().to(x.dtype)
        order = torch.randperm(x.size(0), device=x.device)
        mixed = self(torch.lerp(x[order], x, weight))
        return torch.lerp(F.cross_entropy(mixed, y[order]), F.cross_entropy(mixed, y), weight)


class Flips(Classifier):
    """Draws whether to flip with Python's generator."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x.flip(1) if random.random() < 0.5 else x), y)


class OwnGenerator(Classifier):
    """Draws noise from a generator of its own, which all clients share."""

    def prepare(self) -> None:
        self.generator = torch.Generator().manual_seed(7)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        noise = torch.randn(x.shape, generator=self.generator, dtype=x.dtype)
        return F.cross_entropy(self(x + 0.1 * noise), y)


class VariationalAutoencoder(Classifier):
    """As in the examples of Lightning's bolts, with Adam."""

    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU()))
        self.to_mean, self.to_log_variance = nn.Linear(5, 2), nn.Linear(5, 2)
        self.decoder = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, FEATURES))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, _ = batch
        hidden = self.layers(x)
        mean, log_variance = self.to_mean(hidden), self.to_log_variance(hidden)
        distribution = torch.distributions.Normal(mean, torch.exp(log_variance / 2))
        found = self.decoder(distribution.rsample())
        divergence = torch.distributions.kl_divergence(distribution, torch.distributions.Normal(0, 1)).mean()
        reconstruction = F.mse_loss(found, x)
        self.log_dict({"kl": divergence, "reconstruction": reconstruction}, on_step=False, on_epoch=True)
        return reconstruction + 0.1 * divergence

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class DenoisingAutoencoder(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, _ = batch
        kept = torch.bernoulli(torch.full_like(x, 0.8))
        loss = F.mse_loss(self.layers[0](x * kept) @ self.layers[0].weight, x)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss


class Reinforce(Classifier):
    """Samples actions and learns from their rewards."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        policy = torch.distributions.Categorical(logits=self(x))
        action = policy.sample()
        return -(policy.log_prob(action) * (action == y).to(x.dtype)).mean()


class DropsSometimes(Classifier):
    """Begins to drop units in the second epoch: the first batches draw nothing."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(F.dropout(x, 0.3, training=self.current_epoch > 0)), y)


def conv(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), *between, nn.Flatten(), nn.Linear(64, CLASSES))


ENTRIES = [
    Entry("Dropout", lambda: Classifier(perceptron(nn.Dropout(0.3)))),
    Entry("Dropout2d", lambda: Classifier(conv(nn.Dropout2d(0.3))), images),
    Entry("AlphaDropout", lambda: Classifier(perceptron(nn.AlphaDropout(0.2)))),
    Entry("FeatureAlphaDropout", lambda: Classifier(conv(nn.FeatureAlphaDropout(0.2))), images),
    Entry("RReLU", lambda: Classifier(perceptron(nn.RReLU()))),
    Entry("Gaussian noise by randn_like", lambda: Classifier(perceptron(GaussianNoise()))),
    Entry("stochastic depth", StochasticDepth),
    Entry("Gumbel softmax", GumbelSoftmax),
    Entry("mixup with numpy's Beta", Mixup),
    Entry("mixup with torch's Beta", MixupOfTorch),
    Entry("flips by random.random", Flips),
    Entry("a generator of its own", OwnGenerator),
    Entry("variational autoencoder, Adam", VariationalAutoencoder),
    Entry("denoising autoencoder", DenoisingAutoencoder),
    Entry("samples actions", Reinforce),
    Entry("dropout from the second epoch on", DropsSometimes),
]
