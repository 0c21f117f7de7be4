"""Which operations treat each sample by itself, so that batches of unequal sizes may be filled up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional as F

from fl_lightning.executors.compiler.rows import Rows
from fl_lightning.executors.compiler.sizes import sizes_by_shapes

SAMPLES = 4
#: Functions of values of shape (4, 3) and of a weight of shape (3, 3).
Operation = Callable[[Any, Any], Any]


class Examples(fx.Interpreter):
    """Keeps each node's value as its example, as Dynamo does."""

    def run_node(self, n: fx.Node) -> Any:
        n.meta["example_value"] = super().run_node(n)
        return n.meta["example_value"]


def rows_of(operation: Operation) -> tuple[Rows, list[fx.Node]]:
    """Return what tells of a function's operations, and those that are tensors of samples."""
    traced = fx.symbolic_trace(operation)
    Examples(traced).run(torch.randn(SAMPLES, 3), torch.randn(3, 3))
    _, weight, *others = traced.graph.nodes
    of_weight = {weight}
    for node in others:
        if node.all_input_nodes and of_weight.issuperset(node.all_input_nodes):
            of_weight.add(node)
    of_samples = [node for node in others if node.op != "output" and node not in of_weight]
    tensors = [node for node in of_samples if isinstance(node.meta["example_value"], Tensor)]
    return Rows(lambda node: node not in of_weight, sizes_by_shapes(traced.graph, SAMPLES).rows), tensors


def as_columns(z: Any) -> Any:
    """Return each sample's first value four times."""
    return z[:, :1].expand(SAMPLES, SAMPLES)


def of_places(w: Any) -> Any:
    """Return a row of weights for each place of a batch."""
    return torch.cat([w, w[:1]])


def attended(z: Any, mask: Any = None) -> Any:
    return F.scaled_dot_product_attention(z, z + 1, z + 2, attn_mask=mask)


MIXED: dict[str, Operation] = {
    "product of samples with each sample's matrix": lambda z, w: z @ z[:, :, None],
    "product of two matrices of samples": lambda z, w: as_columns(z) @ z,
    "einsum": lambda z, w: torch.einsum("ji->i", as_columns(z)),
    "transposed": lambda z, w: as_columns(z).transpose(0, 1),
    "transposed from behind": lambda z, w: as_columns(z).swapdims(1, dim1=0),
    "shifted": lambda z, w: F.pad(z, (0, 0, 1, -1)),
    "attention to other samples": lambda z, w: attended(z),
    "one sample for all": lambda z, w: z[z.argmax(1)],
    "softmax": lambda z, w: z.softmax(0),
    "layer of samples": lambda z, w: F.linear(z, z),
    "layer with a bias of samples": lambda z, w: torch.addmm(as_columns(z), c := as_columns(z), c),
    "layer norm of all": lambda z, w: F.layer_norm(z, (SAMPLES, 3)),
    "all samples for each": lambda z, w: z.expand(SAMPLES, SAMPLES, 3),
    "permuted": lambda z, w: as_columns(z).permute(1, 0),
    "stacked": lambda z, w: torch.stack([z] * SAMPLES),
    "stacked from behind": lambda z, w: torch.stack([z] * SAMPLES, -3),
    "stacked with places": lambda z, w: torch.stack([z, of_places(w)], 1),
    "sum": lambda z, w: as_columns(z).sum(0),
    "sum of all": lambda z, w: z.sum(),
    "columns of places": lambda z, w: torch.cat([z, of_places(w)], 1),
    "columns of each sample": lambda z, w: as_columns(z)[:, z.argmax(1)],
    "likeness to all": lambda z, w: F.cosine_similarity(as_columns(z)[:, None], as_columns(z), dim=-1),
    "flipped": lambda z, w: z.flip(0),
    "rolled": lambda z, w: z.roll(1, 0),
    "rolled over all": lambda z, w: z.roll(1),
    "normalized": lambda z, w: F.normalize(z, dim=-2),
    "pool of one sample": lambda z, w: F.max_pool1d(z, 1),
    "loss with another sample": lambda z, w: F.mse_loss(z[:, :1, None], as_columns(z), reduction="none"),
    "row of one sample": lambda z, w: as_columns(z)[0],
    "row of one sample from behind": lambda z, w: as_columns(z)[..., 0, :],
    "rows in another order": lambda z, w: z[[1, 0, 3, 2]],
    "weights of places": lambda z, w: z + of_places(w),
    "product with weights of places": lambda z, w: of_places(w)[:, None] @ z[:, :, None],
    "layer of places": lambda z, w: torch.addmm(z, of_places(w), w),
    "attention with masks of places": lambda z, w: attended(z[:, :, None], w.expand(SAMPLES, 3, 3)),
    "einsum without a result": lambda z, w: torch.einsum("ji", as_columns(z)),
    "einsum of products": lambda z, w: torch.einsum("id,jd->ij", z, z),
    "einsum with weights of places": lambda z, w: torch.einsum("id,id->id", z, of_places(w)),
    "sum over two": lambda z, w: as_columns(z)[:, :, None].expand(SAMPLES, SAMPLES, SAMPLES).sum((1, 0)),
    "attention to places": lambda z, w: F.scaled_dot_product_attention(z[:, None], of_places(w)[:, None], z[:, None]),
    "values in another order": lambda z, w: z[z.argmax(1), z.argmax(1)],
    "values of places": lambda z, w: of_places(w)[torch.arange(z.size(0)), z.argmax(1)],
    "values of columns": lambda z, w: as_columns(z)[torch.arange(z.size(0)), as_columns(z).argsort()],
}


@pytest.mark.parametrize("operation", MIXED.values(), ids=MIXED.keys())
def test_samples_are_mixed(operation: Operation) -> None:
    rows, tensors = rows_of(operation)
    assert not all(rows.makes_rows(node) or rows.treats_alone(node) for node in tensors)


OF_ALL: dict[str, Operation] = {
    "sum": lambda z, w: z.sum(),
    "of one sample's classes": lambda z, w: F.cross_entropy(z[:, 0], z[:, 1].softmax(0)),
    "of classes of places": lambda z, w: F.cross_entropy(z, of_places(w).argmax(1)),
    "of values of places": lambda z, w: F.mse_loss(z, of_places(w)),
    "of each with all": lambda z, w: F.mse_loss(as_columns(z)[:, None], as_columns(z)),
    "of pairs of places": lambda z, w: F.triplet_margin_loss(z, z + 1, of_places(w)),
}


@pytest.mark.parametrize("operation", OF_ALL.values(), ids=OF_ALL.keys())
def test_losses_of_all_are_not_one_of_each_sample(operation: Operation) -> None:
    rows, tensors = rows_of(operation)
    assert not rows.takes_losses(tensors[-1])
