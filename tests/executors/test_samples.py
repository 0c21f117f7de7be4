"""Means over samples become weighted ones, with which a batch that is filled up has the loss of its own samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from fl_lightning.executors.compiler.graph import Place
from fl_lightning.executors.compiler.nodes import inputs_of
from fl_lightning.executors.compiler.notes import logged, metric_call
from fl_lightning.executors.compiler.samples import weighted_graph
from fl_lightning.executors.compiler.sizes import NotOfSamples, find_sizes

SAMPLES, W = torch.arange(12.0).sin().reshape(4, 3), torch.arange(9.0).cos().reshape(3, 3)


def weighted(loss: Callable[[Any, Any], Any]) -> Any:
    """Return a loss of two samples, computed from four of which the last ones have weight 0."""
    graphs, inputs = list[fx.Graph](), list[Any]()

    def keep(module: fx.GraphModule, given: Any) -> Any:
        graphs.append(module.graph)
        kinds = ["batch" if node.target == "L_z_" else "parameters" for node in inputs_of(module.graph)]
        inputs.append([Place(kind, 0) for kind in kinds])
        return module.forward

    torch._dynamo.reset()
    compiled = torch.compile(loss, backend=keep, fullgraph=True)
    compiled(SAMPLES, W)
    compiled(SAMPLES[:2], W)
    sizes = find_sizes(graphs[0], graphs[1], inputs[1], 4)
    graph = weighted_graph(graphs[0], inputs[0], 4, sizes)
    given = [SAMPLES if own.kind == "batch" else W for own in inputs[0]]
    return fx.GraphModule(graphs[0].owning_module or {}, graph)(*given, torch.tensor([0.5, 0.5, 0, 0]))[0]


def of_products(z: Any, w: Any) -> Any:
    each = z[:, :, None]
    own = torch.mm(torch.matmul(input=z, other=w), mat2=w) + torch.einsum("id, dk -> ik", z, w) + z @ w
    layers = F.linear(z, w) + torch.addmm(w[0], z, w) + F.layer_norm(z, normalized_shape=(3,))
    attended = F.scaled_dot_product_attention(each, each + 1, z[..., None] + 2, attn_mask=w)
    return (own + layers + (w @ each + each @ z[:, None] @ each + attended)[..., 0]).square().mean()


def of_forms(z: Any, w: Any) -> Any:
    long = z.reshape(len(z), 3, 1).unflatten(1, (3, 1)).permute((-4, 2, 1, 3)).permute(0, 2, 3, 1).transpose(1, 2)
    both = torch.stack([z.view(z.shape), z.unsqueeze(dim=1).squeeze(-2)], -1).flatten(start_dim=1)[..., :3]
    wide: Any = F.pad(z, pad=(0, 1)).flip(dims=(1,)).sort()[0][:, None].expand(len(z), 2, 4)
    last = z[torch.arange(len(z)), z.argmax(1)] + z.index_select(1, w[0].argmax(0, keepdim=True))[:, 0] + z.max(1)[0]
    rows = z.new_ones(z.size()) + torch.zeros(len(z), 3) + z.new_zeros(3) + w[0] * z + w[:1]
    return long.square().mean() + both.mean() + wide.mean(axis=-1).exp().mean() + last.mean() + rows.mean()


def of_values(z: Any, w: Any) -> Any:
    y, h = z.argmax(1), z.softmax(1) + F.normalize(z) + z.cumsum(dim=1) + z.mean(-1, keepdim=True)
    h += F.embedding(y, w).mul_(2)
    losses = F.mse_loss(z, 2 * z, reduction="none").sum(1) + F.cross_entropy(z, target=y, reduction="none")
    pooled = F.max_pool1d(z[:, None], 2)[:, 0] + F.glu(z[..., :2])
    return h.mean() + (losses + F.pairwise_distance(z, z + 1)).mean() + pooled.mean() + 0 * F.dropout(z, 0.5).mean()


def of_means(z: Any, w: Any) -> Any:
    means = 3 * z.square().mean((0,)) - z.mean(dim=0) / 2 + w.sum() - (1 - z[:, 0].float().mean()).neg()
    return means + z[:, 0].mean() * len(z) / len(z) + (z[:, 1] > 0).float().mean() + z.mean()


def of_sums(z: Any, w: Any) -> Any:
    return (z.sum(0) + z.abs().sum([0])) / len(z) + z.square().sum() / len(z) + (z > 0).sum().double() / len(z)


def of_classes(z: Any, w: Any) -> Any:
    y, log = z.argmax(1), z.log_softmax(1)
    weighed = F.nll_loss(log, y, w[0].abs()) + F.cross_entropy(z, y, w[1].abs(), ignore_index=2)
    weighed = weighed + F.mse_loss(z, w[0].expand(1, 3)) + F.triplet_margin_loss(z, z + 1, z + 2)
    weighed += F.margin_ranking_loss(z, z + 1, z.sign())
    return weighed + F.cross_entropy(z, z.softmax(1), label_smoothing=0.1) + F.cross_entropy(z, y, label_smoothing=0.2)


def notes(z: Any, w: Any) -> Any:
    logged("loss", z.mean(), {"batch_size": len(z)}, False)
    logged("ok", z.mean().isnan(), {"batch_size": 3}, False)
    metric_call("0", "update", z, number=z.mean())
    torch._assert_async(w.sum() > -9)
    return z.mean()


@pytest.mark.parametrize("loss", [of_products, of_forms, of_values, of_means, of_sums, of_classes, notes])
def test_a_loss_is_that_of_samples_with_weights(loss: Any) -> None:
    torch.testing.assert_close(weighted(loss), loss(SAMPLES[:2], W))


def logs(value: Callable[[Any], Any], **options: Any) -> Callable[[Any, Any], Any]:
    def loss(z: Any, w: Any) -> Any:
        logged("value", value(z), options, False)
        return z.mean()

    return loss


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "samples": lambda z, w: z,
    "a sum": lambda z, w: z.sum(),
    "a mean of two dimensions": lambda z, w: z.mean((0, 1)),
    "the largest": lambda z, w: z.max(),
    "a sum of losses": lambda z, w: F.mse_loss(z, 2 * z, reduction="sum") / len(z),
    "smoothed classes with weights": lambda z, w: F.cross_entropy(z, z.argmax(1), w[0], label_smoothing=0.1),
    "a product of means": lambda z, w: z.mean() * z.mean(),
    "a share": lambda z, w: 1 / z.mean(),
    "the square of a mean": lambda z, w: z.mean().square(),
    "a mean times samples": lambda z, w: (z.mean() * z).mean(),
    "a mean and a sum": lambda z, w: (z.mean() + z.sum()) / len(z),
    "a shifted sum": lambda z, w: (z.sum() + 1) / len(z),
    "a mean over the size": lambda z, w: z.mean() / len(z),
    "a sum times the size": lambda z, w: z.sum() * len(z),
    "a weight of the size": lambda z, w: z.mean() + w.sum() * len(z),
    "samples times the size": lambda z, w: (z * len(z)).mean(),
    "a log of samples": logs(lambda z: z[:, 0]),
    "a log of a sum": logs(torch.sum),
    "a log of the size": logs(len),
    "a log of the size with a size": logs(len, batch_size=3),
}


@pytest.mark.parametrize("loss", REFUSED.values(), ids=REFUSED.keys())
def test_others_are_refused(loss: Any) -> None:
    with pytest.raises(NotOfSamples):
        weighted(loss)
