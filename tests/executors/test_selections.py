"""Selections by masks, of another size for each client, are stacked where they end in a mean, a sum or a loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MeanMetric
from zoo.fitting import ends_alike
from zoo.modules.base import Losing

LONG = pytest.mark.long


class Selecting(Losing):
    """Has a loss of some of its samples."""

    def prepare(self) -> None:
        self.mean = MeanMetric()

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return self.of(self, self(batch[0]), batch[1])


def cause_of(loss: Any, sizes: tuple[int, ...] = (8, 13, 6)) -> str | None:
    """Compare fits with stacks and without; return why clients were not stacked."""
    options = {"trainer": {"precision": "64-true"}, "federated": {"local_epochs": 2}}
    return ends_alike(lambda: Selecting(loss), sizes=sizes, **options)


def of_hard_ones(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(scores, y, reduction="none")
    hard = losses[losses > 1.1]
    return hard.sum() / 4


def focal(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(scores, y, reduction="none")[y != 2]
    return ((1 - torch.exp(-losses)) ** 2 * losses).mean()


def of_known_ones(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    known = y != 2
    weight = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    return F.cross_entropy(scores[known], y[known], weight=weight, label_smoothing=0.1, ignore_index=1)


def with_roots_of_positive_ones(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    """Return a loss whose gradient at what is not selected would be no number."""
    return F.cross_entropy(scores, y) + scores[scores > 0].sqrt().sum() / 10


def with_shares(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    first = scores[y == 0]
    return (
        F.cross_entropy(scores, y) + (first.softmax(1) ** 2).sum() / max(1, len(first)) + first.sum(0).square().mean()
    )


def of_chosen_by_squares(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    chosen = scores[:, 0] > 0
    shares = F.one_hot(y, 3).double()[chosen]
    losses = F.mse_loss(scores[chosen], shares, reduction="sum") + F.nll_loss(scores[chosen], y[chosen])
    return losses + F.mse_loss(scores.masked_select(scores > 0), torch.zeros(()).double())


def of_pairs(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    both = torch.cat([scores, scores + 0.1 * torch.randn_like(scores)])
    likeness = F.cosine_similarity(both[:, None], both[None], dim=-1)
    itself = torch.eye(len(both), dtype=torch.bool)
    likeness.masked_fill_(itself, -9e15)
    partner = itself.roll(len(scores), 0)
    return (torch.logsumexp(likeness, 1) - likeness[partner]).mean()


def of_others(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    others = ~torch.eye(len(y), dtype=torch.bool)
    products = (scores @ scores.T)[others]
    return F.cross_entropy(scores, y) + products.square().mean()


def of_views(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    views = torch.cat([scores, scores + 0.1 * torch.randn_like(scores)])
    number = len(views)
    sources = torch.arange(len(y)).repeat(2)
    others = ~torch.eye(number, dtype=torch.bool)
    are_same = (sources[None] == sources[:, None])[others].view(number, -1)
    products = (views @ views.T)[others].view(number, -1)
    ordered = torch.cat([products[are_same].view(number, -1), products[~are_same].view(number, -1)], 1)
    return F.cross_entropy(ordered, torch.zeros(number, dtype=torch.long))


def with_numbers_in_place(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    weights = torch.ones_like(scores)
    weights[y == 1] = 2.0
    positive = scores.clone()
    positive[positive < 0] = 0
    return F.cross_entropy(scores, y) + (weights * positive).mean()


def of_the_best(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    """Return means over rows of several values."""
    best = scores[scores[:, 0] >= scores[:, 0].max()]
    of_all = best[:, :, None].expand(-1, -1, 2).square().mean() + F.mse_loss(best, torch.zeros(()).double())
    return of_all + best.mean(0).square().sum()


#: Losses that are stacked.
LOSSES = (
    *(of_hard_ones, focal, of_known_ones, with_roots_of_positive_ones, with_shares, with_numbers_in_place),
    *(of_the_best, of_chosen_by_squares),
)


def all_losses(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    return sum(loss(module, scores, y) for loss in LOSSES)  # type: ignore[return-value]


@pytest.mark.parametrize("loss", [all_losses, of_pairs, *(pytest.param(loss, marks=LONG) for loss in LOSSES)])
def test_selections_are_stacked(loss: Any) -> None:
    assert cause_of(loss) is None


@pytest.mark.parametrize("loss", [pytest.param(of_others, marks=LONG), of_views])
def test_a_mask_of_the_batchs_size_is_stacked_where_last_batches_have_one_size(loss: Any) -> None:
    assert cause_of(loss, (8, 14, 6)) is None


def test_a_mask_of_the_batchs_size_is_not_stacked_where_last_batches_have_several() -> None:
    assert "several sizes" in str(cause_of(of_others, (8, 13, 6, 11)))


def of_the_hardest(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(scores, y, reduction="none")
    return losses.mean() + losses[losses >= 0].max()


def of_centered(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    chosen = scores[y > 0]
    return F.cross_entropy(scores, y) + (chosen @ chosen.T).sum()


def with_metric(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(scores, y, reduction="none")
    module.mean.update(losses[y > 0].detach())
    return losses.mean()


def drops_some(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores, y) + F.dropout(scores[y > 0], 0.5).sum() / 4


def of_two_masks(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores, y) + scores[y > 0].sum() * scores[y < 9].exp().mul(scores[y > -1]).sum()


def of_two_ways_to_select(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    chosen = y > 0
    return F.cross_entropy(scores, y) + (scores[chosen] * scores[chosen, :1]).sum()


def of_places(module: Any, scores: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores, y) + scores[torch.nonzero(y)[:, 0]].mean()


@pytest.mark.parametrize(
    "loss",
    [
        *(of_the_hardest, with_metric, of_places),
        *(pytest.param(loss, marks=LONG) for loss in (of_centered, drops_some, of_two_masks, of_two_ways_to_select)),
    ],
)
def test_other_selections_train_one_after_the_other(loss: Any) -> None:
    assert "a selection's size" in str(cause_of(loss))
