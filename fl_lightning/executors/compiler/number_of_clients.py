"""One flat list for any number of clients, from the lists for two numbers.

Tracing a list takes some 0.1 s, and a stack shrinks as its clients finish. So lists of filled-up batches are traced for
5 and for 6 clients alone. They are the same, operation by operation, but for sizes, which are linear in the number.
Those become inputs of one list::

    view(x, [20, 3])        # 5 clients
    view(x, [24, 3])        # 6 clients
    view(x, [size, 3])      # size = 20 + 4 * (number - 5), so 40 for 10 clients
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, fx
from torch.utils import _pytree as pytree

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors.compiler.nodes import nodes_of

#: The two numbers of clients.
FEW = 5
MORE = FEW + 1


class DependsOnNumber(CannotVectorize):
    """A step of filled-up batches has other operations for another number of clients."""


def resized(stack: Tensor, number: int) -> Tensor:
    """Return a stack of a number of clients that is laid out in memory like another one."""
    if len(stack) == number:
        return stack
    return stack.detach().new_empty_strided((number, *stack.shape[1:]), stack.stride())


class Size(NamedTuple):
    """A size that is linear in the number of clients: what it is for ``FEW``, and how it grows with one more."""

    of_few: int
    growth: int

    def of(self, number: int) -> int:
        """Return the size for a number of clients."""
        return self.of_few + self.growth * (number - FEW)


def graph_for_any(few: fx.Graph, more: fx.Graph) -> tuple[fx.Graph, list[Size]]:
    """Return the graph for any number of clients, and the sizes that are its last inputs.

    Args:
        few: The graph for ``FEW`` clients.
        more: The graph for ``MORE`` clients.

    Raises:
        DependsOnNumber: If the two differ in more than sizes.
    """
    if len(few.nodes) != len(more.nodes):
        raise DependsOnNumber
    graph = fx.Graph(few.owning_module)
    twins: dict[fx.Node, fx.Node] = {}
    copies: dict[fx.Node, fx.Node] = {}
    sizes: dict[Size, fx.Node] = {}
    last_input: fx.Node | None = None

    def input_of(size: Size) -> fx.Node:
        nonlocal last_input
        assert last_input is not None
        if size not in sizes:
            with graph.inserting_after(last_input):
                last_input = sizes[size] = graph.placeholder(f"linear_size_{len(sizes)}")
        return sizes[size]

    def argument(of_few: Any, of_more: Any) -> Any:
        if isinstance(of_few, fx.Node) and twins[of_few] is of_more:
            return copies[of_few]
        if of_few == of_more:
            return of_few
        if not type(of_few) is type(of_more) is int:
            raise DependsOnNumber
        return input_of(Size(of_few, of_more - of_few))

    for node, twin in zip(nodes_of(few), nodes_of(more), strict=True):
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        other_leaves, other_spec = pytree.tree_flatten((twin.args, twin.kwargs))
        if (node.op, node.target, spec) != (twin.op, twin.target, other_spec):
            raise DependsOnNumber
        args, kwargs = pytree.tree_unflatten(list(map(argument, leaves, other_leaves)), spec)
        twins[node] = twin
        copies[node] = graph.create_node(node.op, node.target, args, kwargs)
        if node.op == "placeholder":
            last_input = copies[node]
    return graph, list(sizes)
