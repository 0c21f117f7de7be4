"""Finds the number of a batch's samples in a step's graph, by comparing it with the graph of a shorter batch.

The graphs of a batch of 4 and of one of 3 samples must be the same, operation by operation, but for that number. Where
the worked example computed its loss by hand::

    total = errors.sum()                   total = errors.sum()
    loss = total / 4                       loss = total / 3      # this argument is the number of samples
    wide = loss * 4                        wide = loss * 4       # this one is not
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors.compiler.graph import Place
from fl_lightning.executors.compiler.nodes import example_of, example_tensor, inputs_of, nodes_of


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


class _Pair(NamedTuple):
    """The numbers of samples of the two batches."""

    full: int
    short: int


def check_inputs(inputs: Sequence[Any], shorter: fx.Graph, others: Sequence[Any]) -> None:
    """Compare the inputs of a step's graph with those of a shorter batch's.

    Args:
        inputs: Those of the graph of a whole batch.
        shorter: The graph of a shorter batch, or of several, of which it then takes the size as an input.
        others: Its inputs.

    Raises:
        NotOfSamples: If they differ in more than the number of samples.
    """
    of_shorter = []
    for node, value in zip(inputs_of(shorter), others, strict=True):
        # Others stand for sizes.
        if _sizes_of(node) is None:
            of_shorter.append(value)
    if len(inputs) != len(of_shorter) or not all(map(_is_same_input, inputs, of_shorter)):
        raise NotOfSamples


def find_sizes(graph: fx.Graph, shorter: fx.Graph, others: Sequence[Any], size: int) -> Sizes:
    """Compare a step's graph with that of a shorter batch.

    Args:
        graph: The graph of a batch of ``size`` samples.
        shorter: The graph of a shorter batch, or of several, of which it then takes the size as an input.
        others: Its inputs; those of ``graph`` are the same, but for sizes.
        size: Samples of a batch, B.

    Raises:
        NotOfSamples: If they differ in more than the number of samples.
    """
    samples = _Pair(size, _samples(shorter, others))
    # Where sizes may differ, a graph has nodes that stand for them.
    nodes = [node for node in nodes_of(shorter) if _sizes_of(node) is None]
    if len(nodes) != len(graph.nodes):
        raise NotOfSamples
    found = Sizes()
    twins: dict[fx.Node, fx.Node] = {}
    for node, twin in zip(nodes_of(graph), nodes, strict=True):
        twins[node] = twin
        if node.op != twin.op or node.op == "get_attr":
            raise NotOfSamples
        if node.op != "placeholder" and node.target != twin.target:
            raise NotOfSamples
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        twin_leaves, twin_spec = pytree.tree_flatten(fx.map_arg((twin.args, twin.kwargs), _as_size))
        if spec != twin_spec:
            raise NotOfSamples
        for place, (one, other) in enumerate(zip(leaves, twin_leaves, strict=True)):
            if isinstance(one, fx.Node):
                if twins[one] is not other:
                    raise NotOfSamples
            elif type(one) is int and type(other) is int and (one, other) == samples:
                found.arguments.setdefault(node, set()).add(place)
            elif type(one) is not type(other) or one != other:
                raise NotOfSamples
        if _has_rows(node, twin, samples):
            found.rows.add(node)
    return found


def sizes_by_shapes(graph: fx.Graph, size: int) -> Sizes:
    """Return where a graph has the number of samples, ``size``, if no batch has another: in the shapes of tensors."""
    return Sizes(rows={node for node in nodes_of(graph) if _has_rows(node, node, _Pair(size, size))})


def _samples(graph: fx.Graph, inputs: Sequence[Any]) -> int:
    """Return how many samples the batch had when a graph was captured."""
    for node, value in zip(inputs_of(graph), inputs, strict=True):
        if isinstance(value, Place) and value.kind == "batch":
            return _number(example_tensor(node).shape[0])
    raise NotOfSamples


def _as_size(node: fx.Node) -> Any:
    """Return the size that a node stands for; other nodes as they are."""
    size = _sizes_of(node)
    return node if size is None else size


def _sizes_of(node: fx.Node) -> Any:
    """Return the size, or sizes, that a node stands for where sizes may differ; ``None`` for anything else."""
    value = example_of(node)
    if isinstance(value, torch.SymInt) and value.node.has_hint():
        return _number(value)
    if isinstance(value, torch.Size):
        return tuple(map(_number, value))
    return None


def _is_same_input(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        are_numbers = isinstance(one, Tensor) and isinstance(other, Tensor) and one.dim() == other.dim() == 0
        # Numbers of Python are tensors of each call's own.
        return one is other or (are_numbers and one.dtype == other.dtype and bool(one == other))
    return bool(one == other)


def _has_rows(node: fx.Node, twin: fx.Node, samples: _Pair) -> bool:
    """Return whether a node's tensors have a row for each sample; raise ``NotOfSamples`` for other differences."""
    values = _values(node)
    twin_values = _values(twin)
    if len(values) != len(twin_values):
        raise NotOfSamples
    have_rows = []
    for one, other in zip(values, twin_values, strict=True):
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            have_rows.append(False)
            continue
        if one.dim() != other.dim() or one.dtype != other.dtype:
            raise NotOfSamples
        sizes = list(zip(one.shape, map(_number, other.shape), strict=True))
        if any(a != b and (a, b) != samples for a, b in sizes):
            raise NotOfSamples
        have_rows.append(bool(sizes) and sizes[0] == samples)
    return bool(have_rows) and all(have_rows)


def _values(node: fx.Node) -> Sequence[Any]:
    value = example_of(node)
    return value if isinstance(value, (tuple, list)) else [value]


def _number(size: Any) -> int:
    """Return a size as a number, where it may be a symbol."""
    number: int = size if type(size) is int else size.node.hint
    return number
