"""Checks that a batch's loss is the mean of its samples' losses, as methods that take samples apart assume."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

#: Relative rounding of bfloat16, the coarsest type of products.
_COARSE = 2.0**-8


def is_mean_of_samples(
    batch: Mapping[str, Tensor], mean: Mapping[str, Tensor], scale: float, *, exact: bool = True
) -> bool:
    """Return whether a batch's gradient is the mean of its samples' gradients, each taken of a batch of one.

    Args:
        batch: The batch's gradient by parameter name.
        mean: The mean of the samples' gradients by parameter name.
        scale: The mean norm of the samples' gradients, to which rounding is in proportion.
        exact: Whether a CPU's products are in the parameters' own precision; a GPU's may be in TF32.
    """
    square = 0.0
    tolerance = 0.0
    for name, gradient in batch.items():
        square += float((gradient.double() - mean[name].double()).square().sum())
        eps = torch.finfo(gradient.dtype).eps
        tolerance = max(tolerance, math.sqrt(eps if exact and gradient.device.type == "cpu" else max(eps, _COARSE)))
    return math.sqrt(square) <= tolerance * scale


def not_a_mean(method: str) -> ValueError:
    """Return the error of a method that takes a batch's samples apart.

    Args:
        method: The method.
    """
    return ValueError(
        f"{method} takes the gradients of single samples, and their mean is not the gradient of the batch's loss, so "
        "`training_step` does not return a mean over samples of losses of single samples. Class weights (a sample's "
        "share then depends on the others of its batch), sums, positions that do not count (-100), BatchNorm, and "
        "whatever else mixes samples do so. Return such a mean: for class weights "
        "`(weight[y] * F.cross_entropy(logits, y, reduction='none')).mean()`."
    )
