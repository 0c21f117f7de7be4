"""Finds the number of a batch's samples in a step's graph, by comparing it with the graph of a shorter batch.

The graphs of a batch of 4 and of one of 3 samples must be the same, operation by operation, but for that number::

    total = loss.sum()                     total = loss.sum()
    mean = total / 4                       mean = total / 3      # this argument is the number of samples
    wide = total * 4                       wide = total * 4      # this one is not
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors.compiler.graph import Place


class NotOfSamples(CannotVectorize):
    """A step treats a batch as a whole."""


@dataclass
class Sizes:
    """Where a graph has the number of samples.

    Attributes:
        arguments: By node the places of those of its arguments, flattened, that are the number of samples.
        rows: The nodes whose tensors have a row for each sample.
    """

    arguments: dict[fx.Node, set[int]] = field(default_factory=dict)
    rows: set[fx.Node] = field(default_factory=set)


def find_sizes(graph: fx.Graph, inputs: Sequence[Any], shorter: fx.Graph, others: Sequence[Any], size: int) -> Sizes:
    """Compare a step's graph with that of a shorter batch.

    Args:
        graph: The graph of a batch of ``size`` samples.
        inputs: Its inputs.
        shorter: The graph of a shorter batch, or of several, of which it then takes the size as an input.
        others: Its inputs.
        size: Samples of a batch, B.

    Raises:
        NotOfSamples: If they differ in more than the number of samples.
    """
    found = Sizes()
    twins: dict[fx.Node, fx.Node] = {}
    ours = dict(zip([node for node in graph.nodes if node.op == "placeholder"], inputs, strict=True))
    theirs = dict(zip([node for node in shorter.nodes if node.op == "placeholder"], others, strict=True))
    own = _samples(theirs)
    nodes = [node for node in shorter.nodes if _sizes_of(node) is None]
    if len(nodes) != len(graph.nodes):
        raise NotOfSamples
    for node, twin in zip(graph.nodes, nodes, strict=True):
        twins[node] = twin
        if node.op != twin.op or (node.op != "placeholder" and node.target != twin.target):
            raise NotOfSamples
        if node.op == "placeholder" and not _is_same_input(ours[node], theirs[twin]):
            raise NotOfSamples
        if node.op == "get_attr":
            raise NotOfSamples
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        own_leaves, own_spec = pytree.tree_flatten(fx.map_arg((twin.args, twin.kwargs), _as_number))
        if spec != own_spec:
            raise NotOfSamples
        for place, (one, other) in enumerate(zip(leaves, own_leaves, strict=True)):
            if _is_number_of_samples(one, other, twins, size, own):
                found.arguments.setdefault(node, set()).add(place)
        if _has_rows(node, twin, size, own):
            found.rows.add(node)
    return found


def _is_number_of_samples(one: Any, other: Any, twins: dict[fx.Node, fx.Node], size: int, own: int) -> bool:
    """Return whether an argument is the number of samples; raise ``NotOfSamples`` if it differs otherwise."""
    if isinstance(one, fx.Node):
        if twins[one] is not other:
            raise NotOfSamples
        return False
    if type(one) is int and type(other) is int and (one, other) == (size, own):
        return True
    if type(one) is not type(other) or one != other:
        raise NotOfSamples
    return False


def _samples(inputs: dict[fx.Node, Any]) -> int:
    """Return how many samples the batch had when a graph was captured."""
    for node, value in inputs.items():
        if isinstance(value, Place) and value.kind == "batch":
            return _number(node.meta["example_value"].shape[0])
    raise NotOfSamples


def _as_number(node: fx.Node) -> Any:
    found = _sizes_of(node)
    return node if found is None else found


def _sizes_of(node: fx.Node) -> Any:
    """Return the size, or sizes, that a node stands for where sizes may differ; ``None`` for anything else."""
    value = node.meta.get("example_value")
    if isinstance(value, torch.SymInt) and value.node.has_hint():
        return _number(value)
    if isinstance(value, torch.Size):
        return tuple(map(_number, value))
    return None


def _is_same_input(one: Any, other: Any) -> bool:
    return one is other or (not isinstance(one, Tensor) and not isinstance(other, Tensor) and one == other)


def _has_rows(node: fx.Node, twin: fx.Node, size: int, own: int) -> bool:
    """Return whether a node's tensors have a row for each sample; raise ``NotOfSamples`` for other differences."""
    values = [_values(each.meta.get("example_value")) for each in (node, twin)]
    if len(values[0]) != len(values[1]):
        raise NotOfSamples
    has_rows = []
    for one, other in zip(*values, strict=True):
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            has_rows.append(False)
            continue
        shapes = list(zip(one.shape, map(_number, other.shape), strict=False))
        if one.dim() != other.dim() or one.dtype != other.dtype:
            raise NotOfSamples
        if any(a != b and (a, b) != (size, own) for a, b in shapes):
            raise NotOfSamples
        has_rows.append(bool(shapes) and shapes[0] == (size, own))
    return bool(has_rows) and all(has_rows)


def _values(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else [value]


def _number(size: Any) -> int:
    found: int = size if type(size) is int else size.node.hint
    return found
