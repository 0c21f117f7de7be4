"""A classifier of any layers, and clients of unequal sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from zoo.entry import tensors
from zoo.modules.base import Classifier

#: All last batches of four have four samples or two: PyTorch captures a step for each size.
SIZES = (8, 14, 6, 22, 10)


def clients_of(shape: tuple[int, ...], sizes: tuple[int, ...] = SIZES) -> list[tuple[Tensor, Tensor]]:
    return [*tensors(shape, sizes, torch.float64).clients]


def linear() -> nn.Sequential:
    """Return two linear layers with six inputs, always with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


class Module(Classifier):
    """The zoo's classifier in double precision, with any optimizer."""

    def __init__(self, layers: nn.Module, make_optimizer: Any = None) -> None:
        super().__init__(layers.double())
        self.make_optimizer = make_optimizer or (lambda p: torch.optim.SGD(p, lr=0.1))

    def configure_optimizers(self) -> Any:
        return self.make_optimizer(self.parameters())


def assert_below(values: Tensor, bound: float) -> None:
    """Assert by Python, which pytest rewrites in files of tests."""
    assert (values < bound).all(), "too large"
