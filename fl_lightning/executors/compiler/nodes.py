"""The nodes of a captured graph, and what they stand for, with their types: PyTorch leaves these open.

Dynamo keeps an example with each node: a tensor that has a shape but no values, or a symbol in the place of a number.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx


def nodes_of(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes of a graph, in a list that stays as it is where the graph is changed."""
    return list(graph.nodes)


def inputs_of(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes of a graph that are its inputs."""
    return [node for node in nodes_of(graph) if node.op == "placeholder"]


def example_of(node: fx.Node) -> object:
    """Return what Dynamo keeps as the example of a node's value; ``None`` if it keeps none."""
    return node.meta.get("example_value")


def example_tensor(node: fx.Node) -> Tensor:
    """Return the example of a node that stands for a tensor."""
    example = example_of(node)
    assert isinstance(example, Tensor)
    return example


def example_number(node: fx.Node) -> torch.SymInt:
    """Return the symbol of a node that stands for a whole number."""
    example = example_of(node)
    assert isinstance(example, torch.SymInt)
    return example


def node_at(node: fx.Node, place: int) -> fx.Node:
    """Return the argument at a place of a node, where it is a node itself."""
    argument = node.args[place]
    assert isinstance(argument, fx.Node)
    return argument
