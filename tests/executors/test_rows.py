"""Which operations treat each sample by itself, so that batches of unequal sizes may be filled up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional as F

from fl_lightning.executors.compiler.rows import Rows

SAMPLES = 4
#: Functions of values of shape (4, 3) and of a weight of shape (3, 3).
Operation = Callable[[Any, Any], Any]


class Examples(fx.Interpreter):
    """Keeps each node's value as its example, as Dynamo does."""

    def run_node(self, n: fx.Node) -> Any:
        n.meta["example_value"] = super().run_node(n)
        return n.meta["example_value"]


def treats_samples_alone(operation: Operation) -> bool:
    """Return whether all operations of a function are known to treat samples by themselves."""
    traced = fx.symbolic_trace(operation)
    Examples(traced).run(torch.randn(SAMPLES, 3), torch.randn(3, 3))
    _, weight, *others = traced.graph.nodes
    rows = Rows(SAMPLES, lambda node: node is not weight, None)
    tensors = [node for node in others if node.op != "output" and isinstance(node.meta["example_value"], Tensor)]
    return all(rows.makes_rows(node) or rows.treats_alone(node) for node in tensors)


def as_columns(z: Any) -> Any:
    """Return each sample's first value four times."""
    return z[:, :1].expand(SAMPLES, SAMPLES)


def attended(z: Any) -> Any:
    return F.scaled_dot_product_attention(z, z, z)


ALONE: dict[str, Operation] = {
    "product with a weight": lambda z, w: z @ w,
    "product of a weight with each sample's matrix": lambda z, w: w @ z[:, :, None],
    "product of each sample's matrices": lambda z, w: z[:, :, None] @ z[:, None],
    "einsum": lambda z, w: torch.einsum("id,dk->ik", z, w),
    "transposed": lambda z, w: z[:, :, None].transpose(1, 2),
    "filled up": lambda z, w: F.pad(z, (0, 1)),
    "attention within a sample": lambda z, w: attended(z[:, :, None]),
    "one value of each sample": lambda z, w: z[torch.arange(z.size(0)), z.argmax(1)],
    "softmax": lambda z, w: z.softmax(1),
    "layer": lambda z, w: F.linear(z, w),
}
MIXED: dict[str, Operation] = {
    "product of samples with each sample's matrix": lambda z, w: z @ z[:, :, None],
    "product of two matrices of samples": lambda z, w: as_columns(z) @ z,
    "einsum": lambda z, w: torch.einsum("ji->i", as_columns(z)),
    "transposed": lambda z, w: as_columns(z).transpose(0, 1),
    "shifted": lambda z, w: F.pad(z, (0, 0, 1, -1)),
    "attention to other samples": lambda z, w: attended(z),
    "one sample for all": lambda z, w: z[z.argmax(1)],
    "softmax": lambda z, w: z.softmax(0),
    "layer of samples": lambda z, w: F.linear(z, z),
}


@pytest.mark.parametrize("operation", ALONE.values(), ids=ALONE.keys())
def test_samples_are_treated_by_themselves(operation: Operation) -> None:
    assert treats_samples_alone(operation)


@pytest.mark.parametrize("operation", MIXED.values(), ids=MIXED.keys())
def test_samples_are_mixed(operation: Operation) -> None:
    assert not treats_samples_alone(operation)
