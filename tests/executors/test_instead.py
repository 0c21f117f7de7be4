"""Functions that a stack calls in the place of torch's: each client's values and gradients are those alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fl_lightning.executors.compiler.unmapped import replace_unmapped


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return the tensors of three clients."""
    return torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def in_a_stack(operation: Callable[..., Any], *stacks: Tensor) -> Any:
    """Return what an operation returns for all clients, as a stack calls it."""
    module = torch.fx.symbolic_trace(operation)
    assert not replace_unmapped(module.graph)
    module.recompile()
    return torch.func.vmap(module, randomness="different")(*stacks)


def embedded(i: Any, w: Any) -> Any:
    return F.embedding(i, w, padding_idx=-1) * F.embedding(i, w, 0) * torch.embedding(w, i, 1)


def gaussians(x: Any, y: Any, v: Any) -> Any:
    losses = F.gaussian_nll_loss(x, y, v**2, reduction="none") + F.gaussian_nll_loss(x, y, 2.0)
    return losses * F.gaussian_nll_loss(x, y, v**2, True, 0.5, "sum")


def of_classes(x: Any, y: Any) -> Any:
    by_sum = F.cross_entropy(x, y, reduction="sum") + F.cross_entropy(x, y, size_average=False)
    return by_sum, F.cross_entropy(x, y, ignore_index=2), F.cross_entropy(x, torch.zeros(5).long(), reduction="none")


def recurs(x: Any, h: Any, *w: Any) -> Any:
    alone = torch.rnn_tanh(x, h, (w[0], w[1], w[4], w[5]), False, 1, 0.0, True, True, False)
    with_biases = torch.rnn_relu(x, h, w, True, 1, 0.0, True, True, False)
    return alone[0] + with_biases[0], alone[1] * with_biases[1]


#: Classes of five samples of each client, or indices of five rows.
CLASSES = torch.tensor([[0, 1, 2, 2, 0], [1, 1, 1, 0, 2], [2, 0, 0, 0, 1]])
SCORES = normal(5, 3)
PLACES = (normal(2, 3, 5), CLASSES[:, None].expand(3, 2, 5))
SAMPLE = (normal(3), CLASSES[:, 0])
GAUSSIAN = (normal(2, 5, 2), normal(1), normal(2, 5))
SMOOTH: Any = {"label_smoothing": 0.2}
SMOOTHED: Any = {"weight": torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64), **SMOOTH}
CELL = [normal(2, 3), *(normal(*shape, seed=2) for shape in ((2, 4), (2, 4), (16, 3), (16, 4), (16,), (16,)))]
#: Of a sequence of three steps, the weights of two layers, and of one in two directions.
LAYERS = [normal(3, 2, 3), normal(2, 2, 4)]
GRU = [normal(*own, seed=3) for own in ((12, 3), (12, 4), (12,), (12,), (12, 4), (12, 4), (12,), (12,))]
RNN = [normal(*own, seed=4) for own in 2 * ((4, 3), (4, 4), (4,), (4,))]

OPERATIONS: dict[str, tuple[Any, ...]] = {
    "embedding": (embedded, CLASSES, normal(3, 2)),
    "sample": (lambda x, y: F.cross_entropy(x, y, **SMOOTHED) * F.cross_entropy(x, y, **SMOOTH), *SAMPLE),
    "cross entropy of places": (
        lambda x, y: F.cross_entropy(x, y, ignore_index=1, **SMOOTHED) * F.cross_entropy(x, y),
        *PLACES,
    ),
    "Gaussian": (gaussians, *GAUSSIAN),
    "all values": (lambda x: (x.max() * torch.min(x), x.detach().median() + torch.nanmedian(x.detach())), SCORES),
    "classes": (of_classes, SCORES, CLASSES),
    "LSTM cell": (lambda x, h, c, v, w, a, b: torch.lstm_cell(x, (h, c), v, w, a, b), *CELL),
    "GRU": (lambda x, h, *w: torch.gru(x, h, w, True, 2, 0.0, True, False, False), *LAYERS, *GRU),
    "RNN": (recurs, *LAYERS, *RNN),
    "added by a factor": (lambda x, f: torch.add(x, (x * 1).sub_(x.cos(), alpha=f.item()), alpha=3), SCORES, normal()),
    "numbers": (lambda x: x * torch.sym_float(x[0, 0].item()) + torch.sym_int(10 * x[0, 1].item()), SCORES),
    "pairs": (lambda x, i: (x * torch.sym_max(x[0, 0].item(), 0), i * torch.sym_min(i[0].item(), 1)), SCORES, CLASSES),
}


def as_tuple(values: Any) -> tuple[Tensor, ...]:
    return values if isinstance(values, tuple) else (values,)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_stack_computes_what_each_client_computes(name: str) -> None:
    operation, *given = OPERATIONS[name]
    stacks = [stack.clone().requires_grad_(stack.is_floating_point()) for stack in given]
    together = as_tuple(in_a_stack(operation, *stacks))
    alone = [as_tuple(operation(*own)) for own in zip(*stacks, strict=True)]
    ends = []
    for values in (together, tuple(map(torch.stack, zip(*alone, strict=True)))):
        total = sum((value * torch.arange(value.numel()).cos().view(value.shape)).sum() for value in values)
        leaves = [stack for stack in stacks if stack.requires_grad and total.requires_grad]
        ends.append((values, torch.autograd.grad(total, leaves, allow_unused=True) if leaves else ()))
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-12)
