"""Losses: weighted, smoothed, contrastive, distilled, with learnt weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import CLASSES, FEATURES, Entry
from zoo.modules.base import Classifier


class ClassWeights(Classifier):
    def prepare(self) -> None:
        self.register_buffer("class_weights", torch.tensor([1.0, 2.0, 0.5]))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y, weight=self.class_weights)


class CriterionWithWeights(Classifier):
    def prepare(self) -> None:
        self.criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1)

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return self.criterion(self(x), y)


class Focal(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        losses = F.cross_entropy(self(x), y, reduction="none")
        return ((1 - torch.exp(-losses)) ** 2 * losses).mean()


class Contrastive(Classifier):
    """SimCLR's loss of two views of a batch, as in Lightning's tutorial."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, _ = batch
        features = F.normalize(self(torch.cat([x, 1.1 * x])), dim=1)
        similarity = features @ features.T
        mask = torch.eye(similarity.shape[0], dtype=torch.bool)
        similarity = similarity.masked_fill(mask, -9e15) / 0.5
        positive = mask.roll(shifts=similarity.shape[0] // 2, dims=0)
        nll = (-(similarity * positive).sum(-1) + torch.logsumexp(similarity, dim=-1)).mean()
        self.log("nll", nll, on_step=False, on_epoch=True)
        return nll


class ContrastiveByIndex(Classifier):
    """The same by indexing with masks, whose result's shape depends on values."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, _ = batch
        features = F.normalize(self(torch.cat([x, 1.1 * x])), dim=1)
        similarity = features @ features.T
        mask = torch.eye(similarity.shape[0], dtype=torch.bool)
        positive = similarity[mask.roll(shifts=similarity.shape[0] // 2, dims=0)]
        return (torch.logsumexp(similarity, dim=-1) - positive).mean()


class Triplet(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, _ = batch
        return F.triplet_margin_loss(self(x), self(1.1 * x), self(x.flip(0)), margin=1.0)


class MaskedLoss(Classifier):
    """Keeps the hard samples: data-dependent control and shapes."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        losses = F.cross_entropy(self(x), y, reduction="none")
        hard = losses[losses > losses.mean()]
        return hard.mean() if len(hard) else losses.mean()


class HardestHalf(Classifier):
    """The same with a number of samples that is known beforehand."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        losses = F.cross_entropy(self(x), y, reduction="none")
        return losses.topk((len(y) + 1) // 2).values.mean()


class LearntWeights(Classifier):
    """Two tasks weighed by learnt uncertainties, which are parameters without dimensions."""

    def prepare(self) -> None:
        self.log_variance_a = nn.Parameter(torch.zeros(()))
        self.log_variance_b = nn.Parameter(torch.zeros(()))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        a, b = F.cross_entropy(logits, y), F.mse_loss(logits.sum(1), x.sum(1))
        pull_a, pull_b = torch.exp(-self.log_variance_a), torch.exp(-self.log_variance_b)
        self.log_dict({"a": a, "b": b, "s_a": self.log_variance_a}, on_step=False, on_epoch=True)
        return pull_a * a + pull_b * b + self.log_variance_a + self.log_variance_b


class GradientPenalty(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        x = x.clone().requires_grad_(True)
        loss = F.cross_entropy(self(x), y)
        [gradient] = torch.autograd.grad(loss, x, create_graph=True)
        return loss + gradient.square().sum()


class CenterLoss(Classifier):
    """Pulls features to their class's centre, which index_add moves."""

    def prepare(self) -> None:
        self.register_buffer("centers", torch.zeros(CLASSES, CLASSES))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        pull = (logits - self.centers[y]).square().sum(1).mean()
        moved = torch.zeros_like(self.centers).index_add(0, y, logits.detach() - self.centers[y])
        self.centers = self.centers + 0.1 * moved
        return F.cross_entropy(logits, y) + 0.1 * pull


class Regression(Classifier):
    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, _ = batch
        return F.huber_loss(self(x).sum(1), x.norm(dim=1), delta=0.5)


class WithPenalty(Classifier):
    """An L1 penalty on all weights, as in Lightning's logistic regression."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        return loss + 1e-2 * sum(parameter.abs().sum() for parameter in self.parameters())


class ReturnsSum(Classifier):
    """Sums over the batch instead of averaging."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.nll_loss(F.log_softmax(self(x), dim=1), y, reduction="sum") / 10


class MixtureOfExperts(Classifier):
    """Each sample goes to one expert: a loop over experts with masks of unknown size."""

    def prepare(self) -> None:
        self.experts = nn.ModuleList(nn.Linear(FEATURES, CLASSES) for _ in range(2))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        chosen = (x.sum(1) > 0).long()
        logits = self(x)
        for number, expert in enumerate(self.experts):
            rows = torch.nonzero(chosen == number).flatten()
            logits = logits.index_add(0, rows, expert(x[rows]))
        return F.cross_entropy(logits, y)


class InputIndependent(Classifier):
    """A loss that is another one for negative batches, by torch.where instead of a branch."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        return torch.where(x.mean() > 0, F.cross_entropy(logits, y), F.multi_margin_loss(logits, y))


ENTRIES = [
    Entry("class weights in a buffer", ClassWeights),
    Entry("criterion with weights, smoothing", CriterionWithWeights),
    Entry("focal loss", Focal),
    Entry("contrastive loss", Contrastive),
    Entry("contrastive loss by mask indexing", ContrastiveByIndex),
    Entry("triplet loss", Triplet),
    Entry("hard samples by mask", MaskedLoss),
    Entry("hard samples by topk", HardestHalf),
    Entry("learnt task weights, 0-dim", LearntWeights),
    Entry("gradient penalty", GradientPenalty),
    Entry("center loss", CenterLoss),
    Entry("regression, Huber loss", Regression),
    Entry("L1 penalty", WithPenalty),
    Entry("summed loss", ReturnsSum),
    Entry("mixture of experts", MixtureOfExperts),
    Entry("torch.where between losses", InputIndependent),
]
