"""Functions as graphs whose nodes have examples, as Dynamo captures them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx


class Examples(fx.Interpreter):
    """Keeps each node's value as its example."""

    def run_node(self, n: fx.Node) -> Any:
        n.meta["example_value"] = super().run_node(n)
        return n.meta["example_value"]


def traced(operation: Callable[..., Any], *examples: Any) -> fx.GraphModule:
    """Return the graph of a function."""
    graph = fx.symbolic_trace(operation)
    Examples(graph).run(*examples)
    return graph
