"""The losses that programs know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class ValueLoss(NamedTuple):
    """A loss that is a mean over single predictions.

    Attributes:
        losses: Takes predictions and targets of one shape; with ``reduction="none"`` it returns each one's loss.
        slopes: Fills ``out`` with each one's derivative, up to ``factor``.
        factor: What the derivatives have to be multiplied by.
    """

    losses: Callable[..., Tensor]
    slopes: Callable[[Tensor, Tensor, Tensor], Tensor]
    factor: float = 1.0


def _cut_off(predictions: Tensor, target: Tensor, out: Tensor) -> Tensor:
    return torch.sub(predictions, target, out=out).clamp_(-1, 1)


#: By name.
VALUE_LOSSES = {
    "mse": ValueLoss(F.mse_loss, lambda predictions, target, out: torch.sub(predictions, target, out=out), 2.0),
    "l1": ValueLoss(F.l1_loss, lambda predictions, target, out: torch.sub(predictions, target, out=out).sign_()),
    "smooth_l1": ValueLoss(F.smooth_l1_loss, _cut_off),
    "huber": ValueLoss(F.huber_loss, _cut_off),
    "binary_cross_entropy": ValueLoss(
        F.binary_cross_entropy_with_logits,
        lambda predictions, target, out: torch.sigmoid(predictions, out=out).sub_(target),
    ),
}
#: Each function's name in a plan.
LOSSES: dict[Any, str] = {F.cross_entropy: "cross_entropy", F.nll_loss: "nll"}
LOSSES |= {loss.losses: name for name, loss in VALUE_LOSSES.items()}
#: Options with other values make a step no program.
USUAL_OPTIONS = {"ignore_index": -100, "reduction": "mean", "label_smoothing": 0.0, "beta": 1.0, "delta": 1.0}
