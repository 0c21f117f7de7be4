"""The values that steps log, computed for many steps of many clients at once from the network's outputs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning.executors.stacked.program.losses import VALUE_LOSSES
from fl_lightning.executors.stacked.program.plan import Plan, reshapes
from fl_lightning.executors.stacked.program.trace import Node, Ref

_POINTWISE = {
    *(getattr(Tensor, name) for name in ("detach", "float", "double", "long", "int", "bool", "to", "clone", "cpu")),
    *(getattr(Tensor, name) for name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "eq", "ne")),
    *(getattr(Tensor, name) for name in ("add", "sub", "mul", "div", "__add__", "__radd__", "__sub__", "__rsub__")),
    *(getattr(Tensor, name) for name in ("__mul__", "__rmul__", "__truediv__", "__neg__", "neg", "abs", "exp", "log")),
    *(getattr(Tensor, name) for name in ("sqrt", "square", "sigmoid", "relu", "tanh", "round", "pow", "__pow__")),
    *(torch.eq, torch.ne, torch.sigmoid, torch.relu, torch.tanh, torch.exp, torch.log, torch.abs, torch.square),
    *(torch.add, torch.sub, torch.mul, torch.div, F.relu, F.sigmoid, F.tanh),
}
_ALONG = {
    *(getattr(Tensor, name) for name in ("argmax", "softmax", "log_softmax", "max", "topk", "sum", "mean", "amax")),
    *(torch.argmax, torch.softmax, F.softmax, torch.log_softmax, F.log_softmax, torch.max, torch.topk, torch.sum),
    *(torch.mean, torch.amax),
}
_MEAN, _SUM = (Tensor.mean, torch.mean), (Tensor.sum, torch.sum)
_SAME = (Tensor.detach, Tensor.reshape, Tensor.view, Tensor.squeeze, Tensor.clone)


class Given:
    """Many clients' batches and their outputs.

    Args:
        values: By number; shape ``(N, n, ...)`` each, for N batches of up to n samples.
        sizes: How many samples each has, shape ``(N,)``.
        weights: The weight of each sample in its batch's mean loss, shape ``(N, n)``.
    """

    def __init__(self, values: dict[int, Tensor], sizes: Tensor, weights: Tensor) -> None:
        self.values, self.sizes, self.weights = values, sizes, weights
        first = next(iter(values.values()))
        self.number, self.most = first.shape[:2]
        self.ragged = bool((sizes != self.most).any())
        self.mask = torch.arange(self.most, device=first.device) < sizes.unsqueeze(1) if self.ragged else None

    def mean(self, values: Tensor) -> Tensor:
        """Return each batch's mean, shape ``(N,)``, of values of shape ``(N, n, ...)``."""
        of_samples = values.reshape(self.number, self.most, -1)
        if self.mask is None:
            return of_samples.flatten(1).mean(1)
        of_samples = of_samples.mean(2)
        return torch.where(self.mask, of_samples, 0).sum(1) / self.sizes.to(of_samples.dtype)

    def sum(self, values: Tensor) -> Tensor:
        """Return each batch's sum, shape ``(N,)``."""
        of_samples = values.reshape(self.number, self.most, -1)
        if self.mask is None:
            return of_samples.flatten(1).sum(1)
        return torch.where(self.mask.unsqueeze(2), of_samples, 0).flatten(1).sum(1)


class _Apart(Exception):
    """Samples cannot be taken together."""


def evaluate(plan: Plan, wanted: Sequence[int], given: Given) -> list[Tensor]:
    """Return the values of a graph for many batches, shape ``(N, ...)`` each; samples beyond a batch's size are void.

    Args:
        plan: How the step is carried out.
        wanted: Their numbers.
        given: The batches and the network's outputs.
    """
    try:
        return _Together(plan, given).values(wanted)
    except _Apart:
        return _apart(plan, wanted, given)


class _Together:
    """Takes all samples of all batches as rows of one table, where every function treats each row by itself."""

    def __init__(self, plan: Plan, given: Given) -> None:
        self._plan, self._given = plan, given
        # rows of samples by number, and single values of batches
        self._rows = {number: value.flatten(0, 1) for number, value in given.values.items()}
        self._single: dict[int, Tensor] = {}
        self._parts: dict[int, Any] = {}

    def values(self, wanted: Sequence[int]) -> list[Tensor]:
        for number in wanted:
            self._find(number)
        shape = self._given.number, self._given.most
        return [self._single[n] if n in self._single else self._rows[n].unflatten(0, shape) for n in wanted]

    def _find(self, number: int) -> None:
        if number in self._rows or number in self._single or number in self._parts:
            return
        node = self._plan.graph.nodes.get(number)
        if node is None:
            raise _Apart
        if number == self._plan.result:
            self._single[number] = self._loss(node)
            return
        for before in node.inputs:
            self._find(before)
        self._compute(node)

    def _loss(self, node: Node) -> Tensor:
        plan, given = self._plan, self._given
        output, target = self._rows[plan.output], self._rows[plan.target]
        if plan.loss in VALUE_LOSSES:
            wanted = target.reshape(output.shape).to(output.dtype)
            losses = VALUE_LOSSES[plan.loss].losses(output, wanted, reduction="none").mean(1)
        else:
            classes = target.reshape(-1, 1).long().clamp(min=0)
            outputs = given.values[plan.output]
            if outputs.is_contiguous():
                losses = -F.log_softmax(output, 1).gather(1, classes).squeeze(1)
            else:  # transposed in memory
                within = classes.view(given.number, 1, given.most)
                losses = -F.log_softmax(outputs.transpose(1, 2), 1).gather(1, within).squeeze(1)
        weights = given.weights
        return torch.where(weights > 0, losses.view(weights.shape) * weights, 0).sum(1)

    def _compute(self, node: Node) -> None:
        inputs = node.inputs
        if node.function is operator.getitem:
            self._rows[node.number] = self._parts[inputs[0]][node.args[1]]
            return
        if all(number in self._single for number in inputs):
            if node.function in _SAME:
                self._single[node.number] = self._single[inputs[0]]
            elif node.function in _POINTWISE:
                self._single[node.number] = self._call(node, self._single)
            else:
                raise _Apart
            return
        if not all(number in self._rows for number in inputs):
            raise _Apart
        plain = len(node.args) == 1 and not node.kwargs
        if plain and node.function in (*_MEAN, *_SUM) and not node.shape:
            rows = self._rows[inputs[0]].unflatten(0, (self._given.number, self._given.most))
            self._single[node.number] = (self._given.mean if node.function in _MEAN else self._given.sum)(rows)
            return
        samples = self._plan.graph.shape_of(inputs[0])[:1]
        # a single sample's dimension could be any
        if node.shape[:1] == samples != (1,) and reshapes(self._plan.graph, node):
            rows = self._rows[inputs[0]]
            self._rows[node.number] = rows.reshape(len(rows), *node.shape[1:])
            return
        along = node.function in _ALONG and _keeps_samples(node, self._rows)
        if node.function not in (*_POINTWISE, F.one_hot) and not along:
            raise _Apart
        if len({len(self._plan.graph.shape_of(number)) for number in inputs}) > 1:
            raise _Apart  # shapes that broadcast might set samples against something else
        result = self._call(node, self._rows)
        (self._rows if isinstance(result, Tensor) else self._parts)[node.number] = result

    def _call(self, node: Node, values: dict[int, Tensor]) -> Any:
        args, kwargs = pytree.tree_map(
            lambda leaf: values[leaf.number] if isinstance(leaf, Ref) else leaf, (node.args, node.kwargs)
        )
        return node.function(*args, **kwargs)


def _keeps_samples(node: Node, rows: dict[int, Tensor]) -> bool:
    """Whether a function along a dimension goes along another one than the samples'."""
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    if node.function in (Tensor.topk, torch.topk):
        dim = node.kwargs.get("dim", node.args[2] if len(node.args) > 2 else -1)
    dims = rows[node.inputs[0]].dim()
    return type(dim) is int and dims > 1 and dim % dims != 0


def _apart(plan: Plan, wanted: Sequence[int], given: Given) -> list[Tensor]:
    """Compute values batch by batch, those of one size at once."""
    results: list[list[Tensor | None]] = [[None] * given.number for _ in wanted]
    for size in given.sizes.unique().tolist():
        members = (given.sizes == size).nonzero().flatten()
        if not size:
            continue
        own = {number: value[members, :size] for number, value in given.values.items()}
        computed = torch.func.vmap(lambda values: _one(plan, wanted, values))(own)
        for place, values in enumerate(computed):
            for row, member in enumerate(members.tolist()):
                results[place][member] = values[row]
    return [_padded(rows) for rows in results]


def _one(plan: Plan, wanted: Sequence[int], values: dict[int, Tensor]) -> list[Tensor]:
    """Return values of one batch."""
    known: dict[int, Any] = dict(values)

    def find(number: int) -> Any:
        if number not in known:
            node = plan.graph.nodes.get(number)
            if node is None or number == plan.output:
                raise CannotVectorize("what is logged depends on more than the batch, the output and the loss")
            args, kwargs = pytree.tree_map(
                lambda leaf: find(leaf.number) if isinstance(leaf, Ref) else leaf, (node.args, node.kwargs)
            )
            known[number] = node.function(*args, **kwargs)
        return known[number]

    return [find(number) for number in wanted]


def _padded(rows: Sequence[Tensor | None]) -> Tensor:
    """Return rows of unequal lengths as one tensor, the shorter ones followed by zeros."""
    given = [row for row in rows if row is not None]
    shape = [max(sizes) for sizes in zip(*(row.shape for row in given), strict=True)]
    whole = given[0].new_zeros(len(rows), *shape)
    for place, row in enumerate(rows):
        if row is not None:
            spans: tuple[Any, ...] = (place, *map(slice, row.shape))
            whole[spans] = row
    return whole
