"""Functions that a stack calls in the place of torch's: each client's values and gradients are those alone."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.graphs import traced
from torch import Tensor, fx, nn
from torch.nn import functional as F

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors.compiler.unmapped import functions_for_capture, replace_unmapped

CLIENTS = 3


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return the tensors of three clients."""
    return torch.randn(CLIENTS, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def in_a_stack(operation: Callable[..., Any], *stacks: Tensor) -> Any:
    """Return what an operation returns for all clients, as a stack calls it."""
    module = traced(operation, *[stack[0].clone() for stack in stacks])
    if replace_unmapped(module.graph):
        stacks = (*stacks, torch.zeros(CLIENTS))
    module.recompile()
    return torch.func.vmap(module, randomness="different")(*stacks)


#: Classes of five samples of each client, or indices of five rows.
CLASSES = torch.tensor([[0, 1, 2, 2, 0], [1, 1, 1, 0, 2], [2, 0, 0, 0, 1]])
WEIGHTS = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
SCORES = normal(5, 3)


def recurrent(layer: nn.RNNBase) -> tuple[Any, ...]:
    """Return a recurrent layer as an operation, and the clients' sequences, states and weights."""
    layer = layer.double()
    number = layer.num_layers * (2 if layer.bidirectional else 1)
    states = [normal(number, 2, 4, seed=seed) for seed in ((1, 2) if isinstance(layer, nn.LSTM) else (1,))]
    weights = [normal(*own.shape, seed=10 + place) for place, own in enumerate(layer.parameters())]
    name = {"RNN_TANH": "rnn_tanh", "RNN_RELU": "rnn_relu"}.get(layer.mode, layer.mode.lower())

    def operation(sequence: Any, *rest: Any) -> Any:
        own_states = rest[: len(states)] if len(states) > 1 else rest[0]
        options = (layer.bias, layer.num_layers, 0.0, True, layer.bidirectional, layer.batch_first)
        return getattr(torch, name)(sequence, own_states, rest[len(states) :], *options)

    return operation, normal(*((2, 3, 3) if layer.batch_first else (3, 2, 3))), *states, *weights


PLACES = (normal(2, 3, 5), CLASSES[:, None].expand(3, 2, 5))
GAUSSIAN = (normal(5, 2), normal(5, 2, seed=1))
CELL = [normal(2, 3), *(normal(*shape, seed=2) for shape in ((2, 4), (2, 4), (16, 3), (16, 4), (16,), (16,)))]
SMOOTHED: Any = {"weight": WEIGHTS, "label_smoothing": 0.2}

OPERATIONS: dict[str, tuple[Any, ...]] = {
    "embedding": (lambda i, w: F.embedding(i, w, padding_idx=0), CLASSES, normal(3, 2)),
    "embedding, padding from the end": (lambda i, w: F.embedding(i, w, padding_idx=-1), CLASSES, normal(3, 2)),
    "embedding of a table": (lambda i, w: torch.embedding(w, i, 0) + torch.embedding(w, i), CLASSES, normal(3, 2)),
    "one_hot": (lambda i, w: F.one_hot(i, 4) * w, CLASSES, normal(4)),
    "no dropout": (lambda x: F.dropout(x, 0.0) + torch.dropout(x, 0.5, False), SCORES),
    "cross entropy": (lambda x, y: F.cross_entropy(x, y, ignore_index=0), SCORES, CLASSES),
    "cross entropy of each": (lambda x, y: F.cross_entropy(x, y, ignore_index=0, reduction="none"), SCORES, CLASSES),
    "cross entropy, sum": (lambda x, y: F.cross_entropy(x, y, reduction="sum"), SCORES, CLASSES),
    "cross entropy, old options": (
        lambda x, y: F.cross_entropy(x, y, size_average=False) + F.cross_entropy(x, y, reduce=False).cos(),
        *(SCORES, CLASSES),
    ),
    "cross entropy of one sample": (lambda x, y: F.cross_entropy(x, y, **SMOOTHED), normal(3), CLASSES[:, 0]),
    "smoothed": (lambda x, y: F.cross_entropy(x, y, ignore_index=1, **SMOOTHED), SCORES, CLASSES),
    "smoothed, of places": (lambda x, y: F.cross_entropy(x, y, **SMOOTHED), *PLACES),
    "Gaussian": (lambda x, y, v: F.gaussian_nll_loss(x, y, v**2), *GAUSSIAN, normal(5, 2, seed=2)),
    "Gaussian, small variances": (
        lambda x, y, v: F.gaussian_nll_loss(x, y, v**2, full=True, eps=0.5, reduction="sum"),
        *(*GAUSSIAN, normal(5, 2, seed=2)),
    ),
    "Gaussian, a variance of each row": (
        lambda x, y, v: F.gaussian_nll_loss(x, y, v**2, reduction="none"),
        *(*GAUSSIAN, normal(5, seed=2)),
    ),
    "normalized": (lambda x: F.normalize(x.detach(), 3.0, 0, 3.0, out=torch.zeros_like(x)), SCORES),
    "LSTM cell": (lambda x, h, c, v, w, a, b: torch.lstm_cell(x, (h, c), v, w, a, b), *CELL),
    "LSTM": recurrent(nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True)),
    "GRU": recurrent(nn.GRU(3, 4, 2, bidirectional=True)),
    "RNN": recurrent(nn.RNN(3, 4, 2, batch_first=True)),
    "RNN without biases": recurrent(nn.RNN(3, 4, nonlinearity="relu", bias=False, bidirectional=True)),
    "a row put": (lambda x, r: torch.select_scatter(x, r, 0, 1), SCORES, normal(3)),
    "a column put from the end": (lambda x, r: x.select_scatter(r, 1, -3), SCORES, normal(5)),
    "rows filled": (lambda x, i: x.index_fill(0, i, 2.0), SCORES, CLASSES),
    "largest and smallest": (lambda x: torch.max(x) - x.min(), SCORES.round()),
    "added by a factor": (lambda x, f: torch.add(x, x.cos(), alpha=f.item()), SCORES, normal()),
    "subtracted by a factor in place": (lambda x, f: (x * 1).sub_(x.cos(), alpha=f.item()), SCORES, normal()),
    "numbers": (lambda x: x * torch.sym_float(x[0, 0].item()) + torch.sym_int(10 * x[0, 1].item()), SCORES),
    "numbers of two types": (
        lambda x, i: x.detach() * torch.sym_max(x[0, 0].item(), 2) + torch.sym_min(i[0].item(), 1),
        *(SCORES, CLASSES),
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_stack_computes_what_each_client_computes(name: str) -> None:
    operation, *given = OPERATIONS[name]
    stacks = [stack.clone().requires_grad_(stack.is_floating_point()) for stack in given]
    together = as_tuple(in_a_stack(operation, *stacks))
    alone = tuple(map(torch.stack, zip(*[as_tuple(operation(*own)) for own in zip(*stacks, strict=True)], strict=True)))
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-12)
    gradients = []
    for values in (together, alone):
        total = sum((value * torch.arange(value.numel()).cos().view(value.shape)).sum() for value in values)
        leaves = [stack for stack in stacks if stack.requires_grad]
        gradients.append(torch.autograd.grad(total, leaves, allow_unused=True) if total.requires_grad else ())
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def as_tuple(values: Any) -> tuple[Tensor, ...]:
    return values if isinstance(values, tuple) else (values,)


REFUSED: dict[str, tuple[Any, ...]] = {
    "`max_norm`": (lambda i, w: F.embedding(i, w, max_norm=1.0), CLASSES, normal(3, 2)),
    "`scale_grad_by_freq`": (lambda i, w: torch.embedding(w, i, -1, True), CLASSES, normal(3, 2)),
    "largest value": (lambda i: F.one_hot(i), CLASSES),
    "variances of another shape": (lambda x, v: F.gaussian_nll_loss(x, x, v[None]), normal(5), normal(5)),
    "`median`": (lambda x: torch.median(x), SCORES),
    "`nanmedian`": (lambda x: x.nanmedian(), SCORES),
    "between its layers": (
        lambda x, h, *w: torch.gru(x, h, w, True, 2, 0.5, True, False, False),
        *recurrent(nn.GRU(3, 4, 2))[1:],
    ),
    "`proj_size`": (
        lambda x, h, *w: torch.gru(x, h, w[:3], True, 1, 0.0, True, False, False),
        *recurrent(nn.GRU(3, 4))[1:],
    ),
}


@pytest.mark.parametrize("cause", REFUSED)
def test_a_function_that_computes_something_else_in_a_stack_is_refused(cause: str) -> None:
    operation, *stacks = REFUSED[cause]
    module = fx.symbolic_trace(operation)
    replace_unmapped(module.graph)
    module.recompile()
    with pytest.raises(CannotVectorize, match=re.escape(cause)):
        torch.func.vmap(module)(*[own.requires_grad_(own.is_floating_point()) for own in stacks])


def test_a_median_without_a_gradient_is_each_clients_own() -> None:
    found = in_a_stack(lambda x: x.detach().median(), SCORES)
    assert found.tolist() == [own.flatten().sort()[0][7].item() for own in SCORES]  # the eighth of 15 values


@pytest.mark.parametrize("inplace", [False, True])
def test_dropped_values_are_zero_and_others_scaled(inplace: bool) -> None:
    torch.manual_seed(0)
    ones = torch.ones(CLIENTS, 1000)
    found = in_a_stack(lambda x: F.dropout(x, 0.75, inplace=inplace), ones)
    assert {*found.flatten().tolist()} == {0.0, 4.0}
    assert found.mean(1).tolist() == pytest.approx([1.0] * CLIENTS, abs=0.2)
    assert not torch.equal(found[0], found[1])
    assert torch.equal(ones, found) == inplace


def test_functions_of_numbers_are_the_usual_ones_while_a_step_is_captured() -> None:
    usual = torch.bincount, math.exp, math.log
    with functions_for_capture():
        assert torch.bincount(CLASSES[0], minlength=4).tolist() == [2, 1, 2, 0]
        assert torch.bincount(CLASSES[0]).tolist() == [2, 1, 2]
        assert torch.bincount(CLASSES[1], torch.ones(5), 4).tolist() == [1.0, 3.0, 1.0, 0.0]
        assert (math.exp(0.5), math.log(0.5), math.log(8, 2)) == (usual[1](0.5), usual[2](0.5), 3.0)
        assert (torch.bincount, math.exp, math.log) != usual
    assert (torch.bincount, math.exp, math.log) == usual
