"""Functions of the user's that a schedule by steps calls are called once for a stack, if the step alone decides."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from torch import Tensor
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, MultiplicativeLR, SequentialLR
from zoo.fitting import ends_alike
from zoo.modules.base import Classifier


class Scheduled(Classifier):
    """Keeps the rates of a schedule by steps, and its last loss."""

    def __init__(self, make: Callable[[Any, Scheduled], Any]) -> None:
        super().__init__()
        self.make = make
        self.warm_up = 4
        self.last: Any = None
        self.rates: list[Tensor] = []

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        rate = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
        self.rates.append(rate + 0 * loss.detach())
        self.last = loss.detach()
        return loss

    def configure_optimizers(self) -> Any:
        # The schedule calls its function once before clients have generators of their own.
        random.seed(0)
        groups = [{"params": self.layers[0].parameters()}, {"params": self.layers[2].parameters(), "lr": 0.1}]
        optimizer = SGD(groups, lr=0.2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.make(optimizer, self), "interval": "step"}}


def rises_and_falls(step: int, *, warm_up: int, total: int) -> float:
    if step < warm_up:
        return float(step) / float(max(1, warm_up))
    progress = float(step - warm_up) / float(max(1, total - warm_up))
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))


class Halves:
    def __call__(self, step: int) -> float:
        return 0.5 ** (step // 2)


def before_others(optimizer: Any, function: Callable[[int], float]) -> SequentialLR:
    """Return three schedules, of which the first calls a function for its second group."""
    first = LambdaLR(optimizer, [Halves(), function])
    return SequentialLR(optimizer, [first, LambdaLR(optimizer, Halves()), CosineAnnealingLR(optimizer, 8)], [2, 4])


STACKED: dict[str, Callable[[Any, Scheduled], Any]] = {
    "of the step": lambda optimizer, module: LambdaLR(optimizer, lambda step: math.exp(-step / 5)),
    "a partial function": lambda optimizer, module: LambdaLR(optimizer, partial(rises_and_falls, warm_up=3, total=12)),
    "of the module's settings": lambda optimizer, module: LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / module.warm_up)
    ),
    "factors": lambda optimizer, module: MultiplicativeLR(optimizer, lambda step: 0.9),
    "before others": lambda optimizer, module: before_others(optimizer, lambda step: (step + 1) / 3),
}


@pytest.mark.parametrize("make", STACKED.values(), ids=STACKED.keys())
def test_functions_of_the_step_are_stacked(make: Callable[[Any, Scheduled], Any]) -> None:
    assert ends_alike(lambda: Scheduled(make)) is None


def counting(optimizer: Any, module: Scheduled) -> LambdaLR:
    calls = [0]

    def function(step: int) -> float:
        calls[0] += 1
        return 1 / calls[0]

    return LambdaLR(optimizer, function)


REFUSED: dict[str, tuple[Callable[[Any, Scheduled], Any], str]] = {
    "counts its calls": (counting, "the function of a learning-rate schedule changes something"),
    "reads counts": (
        lambda optimizer, module: before_others(optimizer, lambda step: 1 / (1 + module.global_step)),
        "schedule reads `global_step`",
    ),
    "reads weights": (
        lambda optimizer, module: LambdaLR(optimizer, lambda step: float(module.layers[0].weight.norm())),
        "reads what the steps",
    ),
    "reads what a step keeps": (
        lambda optimizer, module: LambdaLR(optimizer, lambda step: 1.0 if module.last is None else 0.5),
        "reads what the steps",
    ),
    "draws": (lambda optimizer, module: LambdaLR(optimizer, lambda step: random.random()), "schedule draws"),
}


@pytest.mark.parametrize(("make", "cause"), REFUSED.values(), ids=REFUSED.keys())
def test_other_functions_train_one_after_the_other(make: Callable[[Any, Scheduled], Any], cause: str) -> None:
    assert cause in str(ends_alike(lambda: Scheduled(make)))
