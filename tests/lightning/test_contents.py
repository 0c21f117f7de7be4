"""Contents of modules and optimizers are compared, and put back."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import nn
from torchmetrics import MeanMetric

from fl_lightning._lightning.contents import same_content
from fl_lightning._lightning.evaluation.attributes import Attributes

#: Two values each.
ALIKE: list[tuple[Any, Any]] = [
    *((torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0])), (np.array([1, 2]), np.array([1, 2]))),
    *(({"a": 1, "b": [2, (3, "c")]}, {"a": 1, "b": [2, (3, "c")]}), (deque([1, 2]), deque([1, 2]))),
    *(({1, 2}, {2, 1}), (b"ab", bytes([97, 98]))),
]
OTHERS: list[tuple[Any, Any]] = [
    *((torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])), (torch.tensor([1.0]), torch.tensor([1.0]).double())),
    *((torch.eye(1).to_sparse(), torch.eye(1).to_sparse()), (np.array([1, 2]), np.array([1, 3]))),
    *((np.array([1]), np.array([1.0])), ({"a": 1, "b": 2}, {"a": 1, "b": 3}), ({"a": 1}, {"a": 1, "b": 2})),
    *(({"a": 1, "b": 2}, {"b": 2, "a": 1}), ([1, 2], [1, 3]), ([1], [1, 2]), (deque([1]), deque([2]))),
    *(((1,), [1]), (1, 1.0), ({1}, {2}), (b"ab", b"ac"), (object(), object())),
]


def test_contents_are_compared_by_type_order_and_value() -> None:
    assert [pair for pair in ALIKE if not same_content(*pair)] == []
    assert [pair for pair in OTHERS if same_content(*pair)] == []


class Holding(nn.Module):
    """Holds what a step may change in place."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.names, self.kinds = [1, 2], {"a": 1}, {3}
        self.torch, self.numpy = torch.Generator().manual_seed(1), np.random.default_rng(1)
        self.python, self.count, self.gone = random.Random(1), 1, "here"
        self.child = nn.Module()
        self.child.count = 2
        self.metric = MeanMetric()

    def draw(self) -> tuple[float, float, float]:
        return torch.rand((), generator=self.torch).item(), self.numpy.random(), self.python.random()

    def change(self) -> None:
        self.numbers.append(3)
        self.names["a"] = 2
        self.kinds.add(4)
        self.draw()
        self.count, self.child.count, self.new, self.newer = 5, 6, 7, 8
        self.metric.extra = 8
        del self.gone


def test_what_a_module_holds_is_put_back() -> None:
    module, other = Holding(), Holding()
    attributes = Attributes(module)
    before = attributes.read()
    assert attributes.changed_since(before) == []
    held = module.numbers
    module.change()
    names = ["count", "gone", "kinds", "names", "new", "newer", "numbers", "numpy", "python", "torch"]
    assert attributes.changed_since(before) == [*((module, name) for name in names), (module.child, "count")]
    module.numbers = []
    attributes.write(before)
    assert attributes.changed_since(before) == []
    assert module.numbers is held
    assert (module.numbers, module.names, module.kinds) == ([1, 2], {"a": 1}, {3})
    assert (module.count, module.child.count, module.gone, hasattr(module, "new")) == (1, 2, "here", False)
    assert module.draw() == other.draw()
    assert module.metric.extra == 8  # a metric object is another's to put back
