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
    return Rows(SAMPLES, lambda node: node not in of_weight, None), tensors


def treats_samples_alone(operation: Operation) -> bool:
    """Return whether all operations of a function are known to treat samples by themselves."""
    rows, tensors = rows_of(operation)
    return all(rows.makes_rows(node) or rows.treats_alone(node) for node in tensors)


def takes_losses(operation: Operation) -> bool:
    """Return whether the last operation of a function is a mean of a loss of each sample."""
    rows, tensors = rows_of(operation)
    return rows.takes_losses(tensors[-1])


def as_columns(z: Any) -> Any:
    """Return each sample's first value four times."""
    return z[:, :1].expand(SAMPLES, SAMPLES)


def of_places(w: Any) -> Any:
    """Return a row of weights for each place of a batch."""
    return torch.cat([w, w[:1]])


def attended(z: Any, mask: Any = None) -> Any:
    return F.scaled_dot_product_attention(z, z + 1, z + 2, attn_mask=mask)


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
    "layer with a bias": lambda z, w: torch.addmm(w[0], z, w),
    "layer norm": lambda z, w: F.layer_norm(z, (3,)),
    "embedding": lambda z, w: F.embedding(z.argmax(1), w),
    "reshaped": lambda z, w: z.reshape(SAMPLES, 3, 1).unflatten(1, (3, 1)),
    "permuted": lambda z, w: z[:, :, None].permute(0, 2, 1).permute((0, 2, 1)),
    "unsqueezed and stacked": lambda z, w: torch.stack([z.unsqueeze(1), z.unsqueeze(-2)], -1),
    "along the other dimension": lambda z, w: z.sum(-1) + z.max(1)[0] + F.glu(z[..., :2]).mean(1),
    "normalized": lambda z, w: F.normalize(z) + z.cumsum(dim=1),
    "pool of a batch": lambda z, w: F.max_pool1d(z[:, None], 2),
    "losses": lambda z, w: F.mse_loss(z, 2 * z, reduction="none"),
    "losses of classes": lambda z, w: F.cross_entropy(z, z.argmax(1), reduction="none"),
    "distances of pairs": lambda z, w: F.pairwise_distance(z, z + 1),
    "arguments by name": lambda z, w: torch.flatten(torch.matmul(z, other=w).unsqueeze(dim=1), start_dim=1),
    "weights for all": lambda z, w: z * w[0] + w[:1],
    "attention with a mask for all": lambda z, w: attended(z[:, :, None], w),
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
    "layer with a bias of samples": lambda z, w: torch.addmm(as_columns(z), c := as_columns(z), c),
    "layer norm of all": lambda z, w: F.layer_norm(z, (SAMPLES, 3)),
    "all samples for each": lambda z, w: z.expand(SAMPLES, SAMPLES, 3),
    "permuted": lambda z, w: as_columns(z).permute(1, 0),
    "permuted by a tuple": lambda z, w: as_columns(z).permute((1, 0)),
    "stacked": lambda z, w: torch.stack([z] * SAMPLES),
    "sum": lambda z, w: as_columns(z).sum(0),
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
    "einsum with dots": lambda z, w: torch.einsum("...i->i...", as_columns(z)),
    "sum over two": lambda z, w: as_columns(z)[:, :, None].expand(SAMPLES, SAMPLES, SAMPLES).sum((1, 0)),
    "parts of values": lambda z, w: z.view(torch.int16),
    "values in another order": lambda z, w: z[z.argmax(1), z.argmax(1)],
}


@pytest.mark.parametrize("operation", ALONE.values(), ids=ALONE.keys())
def test_samples_are_treated_by_themselves(operation: Operation) -> None:
    assert treats_samples_alone(operation)


@pytest.mark.parametrize("operation", MIXED.values(), ids=MIXED.keys())
def test_samples_are_mixed(operation: Operation) -> None:
    assert not treats_samples_alone(operation)


OF_EACH: dict[str, Operation] = {
    "of classes": lambda z, w: F.cross_entropy(z, z.argmax(1)),
    "of classes by name": lambda z, w: F.cross_entropy(z, target=z.argmax(1)),
    "of values": lambda z, w: F.mse_loss(z, 2 * z),
    "of values and a weight": lambda z, w: F.mse_loss(z, w[0].expand(1, 3)),
    "of pairs": lambda z, w: F.margin_ranking_loss(z, z + 1, z.sign()),
    "of triples": lambda z, w: F.triplet_margin_loss(z, z + 1, z + 2),
}
OF_ALL: dict[str, Operation] = {
    "sum": lambda z, w: z.sum(),
    "of one sample's classes": lambda z, w: F.cross_entropy(z[:, 0], z[:, 1].softmax(0)),
    "of classes of places": lambda z, w: F.cross_entropy(z, of_places(w).argmax(1)),
    "of values of places": lambda z, w: F.mse_loss(z, of_places(w)),
    "of each with all": lambda z, w: F.mse_loss(as_columns(z)[:, None], as_columns(z)),
    "of pairs of places": lambda z, w: F.triplet_margin_loss(z, z + 1, of_places(w)),
}


@pytest.mark.parametrize(("operations", "are_of_each"), [(OF_EACH, True), (OF_ALL, False)], ids=["each", "all"])
def test_losses_are_one_of_each_sample(operations: dict[str, Operation], are_of_each: bool) -> None:
    assert {name: takes_losses(operation) for name, operation in operations.items()} == dict.fromkeys(
        operations, are_of_each
    )
