"""Operations that ``torch.func.vmap``, or a stack, would treat otherwise than a client alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import CLASSES, UNEQUAL, Entry, one_by_one, words
from zoo.modules.base import Classifier


class Adds(Classifier):
    """Adds a term to its loss, ``term(weights of each class, scores, classes)``."""

    def __init__(self, term: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.term, self.w = term, nn.Parameter(torch.ones(CLASSES))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self(batch[0])
        return F.cross_entropy(scores, batch[1]) + 0.1 * self.term(self.w, scores, batch[1])


def adds(name: str, term: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Entry:
    return Entry(name, lambda: Adds(term), sizes=UNEQUAL)


def scattered(w: Tensor, scores: Tensor, y: Tensor) -> Tensor:
    return (torch.zeros(len(y), CLASSES, dtype=w.dtype).scatter_(1, y[:, None], 1.0) * w).sum()


def seen(w: Tensor, scores: Tensor, y: Tensor) -> Tensor:
    """Looks at a table before the table is changed, for some clients' values alone."""
    table = torch.zeros(CLASSES, dtype=w.dtype)
    row = table.view(CLASSES)
    table += F.one_hot(y[0], CLASSES) * (y[0] == 0)
    return (row * w).sum()


def transformed(w: Tensor, scores: Tensor, y: Tensor) -> Tensor:
    """The gradients of each sample by itself."""
    return torch.func.vmap(torch.func.grad(lambda own: (own * w).tanh().sum()))(scores).square().mean()


def added(w: Tensor, scores: Tensor, y: Tensor) -> Tensor:
    """Adds in place within a transform what differs between clients."""
    return torch.func.vmap(lambda own: torch.zeros((), dtype=w.dtype).add_(w.sum()) * own.sum())(scores).mean()


def gaussian(w: Tensor, scores: Tensor, y: Tensor) -> Tensor:
    variances = w[1].abs() * y.to(w.dtype)  # zeros, where `eps` is taken
    return F.gaussian_nll_loss(w[0] * scores[:, 0], torch.zeros_like(variances), variances, full=True, eps=0.5)


def replaced(w: Tensor, scores: Tensor, y: Tensor) -> Tensor:
    table = torch.ones(2, CLASSES, dtype=w.dtype) * scores.detach().sum()
    return torch.select_scatter(table, w, 0, -1).mean()


def smoothed(w: Tensor, scores: Tensor, y: Tensor) -> Tensor:
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=w.dtype)
    return F.cross_entropy(scores, y, weights, ignore_index=2, label_smoothing=0.1, reduction="sum")


def rooted(w: Tensor, scores: Tensor, y: Tensor) -> Tensor:
    """A factor of a matrix, or of a similar one where the matrix has none."""
    square = F.one_hot(y, CLASSES).to(w.dtype).T @ F.one_hot(y, CLASSES).to(w.dtype)
    try:
        factor = torch.linalg.cholesky(square)
    except RuntimeError:
        factor = torch.linalg.cholesky(square + 0.1 * torch.eye(CLASSES, dtype=w.dtype))
    return (factor.diagonal() * w).mean()


class Ignores(Classifier):
    """Has classes that no loss counts, and batches without a number, or a gradient, where there are no others."""

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        targets = torch.where(batch[1] == 0, -100, batch[1])
        return F.cross_entropy(self(batch[0]), targets) + 0 * self(batch[0]).softmax(-1).sum()


class Padded(Classifier):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, CLASSES))
        self.table = nn.Parameter(torch.randn(10, 4))

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layers(F.embedding(batch[0], self.table, padding_idx=0).mean(1)), batch[1])


@torch.jit.script
def doubled_if_large(loss: Tensor) -> Tensor:
    if bool(loss > 1.1):
        loss = loss * 2
    return loss


#: Terms that are stacked.
TERMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "equal largest values": lambda w, scores, y: (w * F.one_hot(y[0], CLASSES)).max(),
    "index_fill by an index": lambda w, scores, y: w.index_fill(0, y[:1] - 3, 0.0).sum(),
    "one_hot of classes": lambda w, scores, y: (F.one_hot(y, CLASSES) * w).sum(),
    "row replaced by select_scatter": replaced,
    "weighted classes, smoothed": smoothed,
    "transforms of torch.func": transformed,
}


def all_terms(w: Tensor, scores: Tensor, y: Tensor) -> Tensor:
    return sum(term(w, scores, y) for term in TERMS.values())  # type: ignore[return-value]


LAST = torch.tensor([-1])
ENTRIES = [
    Entry("ignored classes", Ignores, sizes=UNEQUAL),
    Entry("functional embedding with padding_idx", Padded, words),
    adds("all terms that are stacked", all_terms),
    *one_by_one(
        adds("operation that fails for some clients", rooted),
        adds("text of a tensor", lambda w, scores, y: w.sum() * ("-" in repr(scores))),
        adds("function of torch.jit", lambda w, scores, y: doubled_if_large(scores.square().mean())),
        adds("Gaussian loss with variances", gaussian),
        adds("median", lambda w, scores, y: (w * F.one_hot(y[0], CLASSES)).median()),
        adds("indices in common", lambda w, scores, y: (F.one_hot(torch.arange(3)) * w.index_fill(0, LAST, 0)).sum()),
        adds("weighted covariances", lambda w, scores, y: torch.cov(scores.T, aweights=(y + 1).to(w.dtype)).sum()),
        adds("new tensor, scatter_", scattered),
        adds("transform that fails in a stack", added),
        adds("seen by view", seen),
    ),
]
LONG = [adds(name, term) for name, term in TERMS.items()]
