"""Numbers of Python among the inputs of a captured graph, and sizes that values decide.

Where a number has changed from one step to the next, the graph takes it as an input. As a tensor of shape ``()`` it is
one operand of a flat list of operations, which then serves all its values::

    def forward(self, epoch, x, weight):          # epoch: a `SymInt`, given as 3
        beta = epoch / 10                         # given as tensor(3): a tensor as well
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors.compiler.causes import SELECTS


def numbers_as_tensors(graph: fx.Graph, inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs of a graph with tensors in the place of whole numbers, but for those that are sizes.

    Args:
        graph: The graph, as Dynamo captured it.
        inputs: Its inputs.
    """
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    if not any(_is_whole_number(node) for node in nodes):
        return list(inputs)
    in_sizes = _symbols_in_sizes(graph)
    found: list[Any] = []
    for node, value in zip(nodes, inputs, strict=True):
        is_number = _is_whole_number(node) and type(value) is int
        if is_number and not node.meta["example_value"].node.expr.free_symbols & in_sizes:
            found.append(torch.tensor(value))
        else:
            found.append(value)
    return found


def check_sizes(graph: fx.Graph) -> None:
    """Raise ``CannotVectorize`` if a tensor's size depends on values, as that of ``x[x > 0]`` does."""
    for node in graph.nodes:
        for tensor in _tensors_of(node):
            for size in tensor.shape:
                if isinstance(size, torch.SymInt) and not size.node.has_hint():
                    raise CannotVectorize(SELECTS)


def _is_whole_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.SymInt)


def _symbols_in_sizes(graph: fx.Graph) -> set[Any]:
    """Return the symbols on which sizes of the graph's tensors depend."""
    found: set[Any] = set()
    for node in graph.nodes:
        for tensor in _tensors_of(node):
            for size in tensor.shape:
                if isinstance(size, torch.SymInt):
                    found |= size.node.expr.free_symbols
    return found


def _tensors_of(node: fx.Node) -> list[Tensor]:
    """Return the tensors that a node stands for."""
    leaves = pytree.tree_leaves(node.meta.get("example_value"))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
