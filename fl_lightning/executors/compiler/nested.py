"""Graphs within a captured graph: checkpointed parts of a model, and functions with a gradient of the user's own.

Dynamo captures ``checkpoint(self.layer, x)`` as a graph that is called. Its nodes are put in the place of the call: a
stack holds what the backward pass needs in any case, and the values are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning.executors.compiler.nodes import inputs_of, node_at, nodes_of

#: Keeps the place of a tensor among the values that a backward pass needs.
_A_TENSOR = object()


def inline_checkpoints(root: nn.Module, graph: fx.Graph) -> None:
    """Put the nodes of checkpointed parts in the place of their calls.

    Args:
        root: Holds the graphs that are called.
        graph: The graph, which is changed.
    """
    for node in nodes_of(graph):
        if node.target is not torch.ops.higher_order.tag_activation_checkpoint:
            continue
        called = node_at(node, 0)
        given: Any = node.args[1:]
        part: Any = root.get_submodule(str(called.target))
        with graph.inserting_before(node):
            outputs: Any = graph.graph_copy(part.graph, dict(zip(inputs_of(part.graph), given, strict=True)))
        for user in list(node.users):
            # What is called returns a tuple.
            user.replace_all_uses_with(outputs[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)


def own_gradient(forward: fx.GraphModule, backward: fx.GraphModule, *inputs: Any, **options: Any) -> tuple[Any, ...]:
    """Call an ``autograd.Function`` of the user's, as Dynamo captures it, so that it can be mapped.

    Args:
        forward: Returns its outputs, and what the backward pass needs.
        backward: Is given the outputs' gradients and what it needs, and returns the inputs' gradients.
        inputs: The function's inputs.
        options: Which outputs have no gradient, or are inputs that were written to.

    Raises:
        CannotVectorize: If it writes to its inputs.
    """
    if options.get("dirty_idx"):
        raise CannotVectorize("`training_step` uses an `autograd.Function` that writes to its inputs")
    without_gradient: list[int] = options["non_differentiable_idx"]
    number = 0

    class Mapped(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*given: Any) -> tuple[Any, ...]:
            nonlocal number
            # The graphs switch gradients off and on.
            with torch.set_grad_enabled(torch.is_grad_enabled()):
                outputs, needed = forward(*given)
            number = len(outputs)
            # An input may be needed, which is no output as it is.
            return (*outputs, *[each.view_as(each) if isinstance(each, Tensor) else each for each in needed])

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            needed = output[number:]
            tensors = [value for value in needed if isinstance(value, Tensor)]
            ctx.save_for_backward(*tensors)
            # Sizes and other values stay as they are.
            ctx.needed = [_A_TENSOR if isinstance(value, Tensor) else value for value in needed]

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            tensors = iter(ctx.saved_tensors)
            needed = [next(tensors) if value is _A_TENSOR else value for value in ctx.needed]
            with torch.set_grad_enabled(torch.is_grad_enabled()):
                return backward(*gradients[:number], *needed)

    found = Mapped.apply(*inputs)[:number]
    # `vmap` passes over what `ctx.mark_non_differentiable` says.
    return tuple(each.detach() if place in without_gradient else each for place, each in enumerate(found))
