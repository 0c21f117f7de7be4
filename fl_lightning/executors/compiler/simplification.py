"""Flat lists of operations, made shorter: a small model's step takes as long as its calls, not as its arithmetic.

What ``vmap`` and autograd call for one layer of the worked example, and what is left of it::

    product = bmm(x, weight_t)
    same = view(product, [K, B, out])            # left out: it has this shape already
    prediction = add(same, bias)                 # prediction = baddbmm(bias, x, weight_t)
    gradient = transpose(bmm(x_t, slope), 1, 2)  # step(0, slope_t, x): the step adds the product at once
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch import Tensor, fx

from fl_lightning.executors.compiler.nodes import node_at, nodes_of

aten = torch.ops.aten
#: The dimensions that `transpose` turns in a batched product.
_IN_BATCHES = {(1, 2), (2, 1), (-1, -2), (-2, -1)}
_NOTHING = {aten.alias.default, aten.detach.default}
_RESHAPES = {
    aten.expand.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.permute.default,
    aten.transpose.int,
    aten.unsqueeze.default,
}
#: Methods that write in the place of their first argument what a function returns.
_IN_PLACE = {
    aten.add.Tensor: "add_",
    aten.div.Tensor: "div_",
    aten.mul.Tensor: "mul_",
    aten.neg.default: "neg_",
    aten.relu.default: "relu_",
    aten.sub.Tensor: "sub_",
}
#: Functions of a backward pass that can write in the place of the gradient that they are given.
_IN_GRADIENT = {
    aten.gelu_backward.default: aten.gelu_backward.grad_input,
    aten.threshold_backward.default: aten.threshold_backward.grad_input,
}


def simplify(graph: fx.Graph, draw: Callable[..., Any]) -> None:
    """Leave out operations that change nothing, add within products, and let random operations draw by client."""
    calls = [node.target for node in nodes_of(graph) if isinstance(node.target, torch._ops.OpOverload)]
    writes = any(target._schema.is_mutable for target in calls)
    for node in nodes_of(graph):
        if node.op != "call_function":
            continue
        same = _is_same_as(node, writes)
        if same is not None:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
        elif node.target is aten.add.Tensor:
            _add_within_product(node)
        elif node.target is aten.view.default and _squeezes(node):
            # A sum that does not keep its dimension.
            node.target = aten.sum.dim_IntList
            node.args = node_at(node, 0).args[:2]
        elif torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            function: Any = node.target
            node.args = (function, *node.args)
            node.target = draw
    if writes:
        return
    # Kernels may lay their results out otherwise than the traced ones, so that a view is not possible.
    for node in nodes_of(graph):
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default


def write_in_place(graph: fx.Graph) -> None:
    """Let operations write where they read what nothing else reads: fewer tensors pass through the caches."""
    # From the end, since a tensor that is written to is no new one.
    for node in reversed(nodes_of(graph)):
        first: Any = node.args[0] if node.args else None
        if not isinstance(first, fx.Node) or not _is_new(first) or len(first.users) > 1:
            continue
        form = _form(node)
        if form is None or form != _form(first):
            continue
        if node.target in _IN_PLACE:
            node.op = "call_method"
            node.target = _IN_PLACE[node.target]
        elif node.target in _IN_GRADIENT:
            node.target = _IN_GRADIENT[node.target]
            node.kwargs = {**node.kwargs, "grad_input": first}


def step_at_end(graph: fx.Graph, used: Sequence[int], step: Callable[..., Any]) -> None:
    """Step each parameter by its gradient; where that is a product, by its two factors.

    Args:
        graph: The graph, whose last outputs are gradients; they are no outputs afterwards.
        used: The places of the parameters that have them.
        step: Steps the parameter at a place.
    """
    output = graph.output_node()
    outputs: list[Any] = list(output.args[0])  # type: ignore[arg-type, call-overload]
    number = len(outputs) - len(used)
    with graph.inserting_before(output):
        for place, gradient in zip(used, outputs[number:], strict=True):
            graph.call_function(step, (place, *_factors(graph, gradient)))
    output.args = (outputs[:number],)


def lay_out_as_read(graph: fx.Graph, number: int) -> None:
    """Let products that are gradients come out as the optimizer reads them, and not transposed.

    Args:
        graph: The graph.
        number: Its last outputs that are gradients.
    """
    output = graph.output_node()
    outputs: list[Any] = list(output.args[0])  # type: ignore[arg-type, call-overload]
    with graph.inserting_before(output):
        for place in range(len(outputs) - number, len(outputs)):
            if _is_turned(outputs[place]):
                factors = _factors(graph, outputs[place])
                if len(factors) == 2:
                    outputs[place] = graph.call_function(aten.bmm.default, tuple(factors))
    output.args = (outputs,)


def _factors(graph: fx.Graph, gradient: fx.Node) -> Sequence[Any]:
    """Return the two factors of which a gradient is the product, or the gradient."""
    if len(gradient.users) > 1:
        return (gradient,)
    if _is_product(gradient):
        return gradient.args
    product: Any = gradient.args[0] if gradient.args else None
    if not _is_turned(gradient) or not _is_product(product):
        return (gradient,)
    one, other = product.args
    return _turned(graph, other), _turned(graph, one)


def _turned(graph: fx.Graph, factor: Any) -> Any:
    """Return the transposed factor of a batched product."""
    if _is_turned(factor):
        return factor.args[0]
    return graph.call_function(aten.transpose.int, (factor, 1, 2))


def call_fastest(graph: fx.Graph) -> None:
    """Call functions of ``torch``, or methods, that do the same as overloads, in half the time that a call takes."""
    for node in nodes_of(graph):
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or target._schema.is_mutable:
            continue
        # As indices of `x[:, [0, 2]]`, which the function does not take.
        if "Tensor?[]" in str(target._schema):
            continue
        name = target.overloadpacket.__name__
        function = getattr(torch, name, None)
        if isinstance(function, BuiltinFunctionType):
            node.target = function
        elif isinstance(getattr(Tensor, name, None), MethodDescriptorType):
            node.op = "call_method"
            node.target = name


# ---- questions about nodes ----


def _is_same_as(node: fx.Node, writes: bool) -> Any:
    """Return the node whose tensor a node returns as it is; ``None`` if it computes another."""
    first: Any = node.args[0] if node.args else None
    if node.target in _NOTHING:
        return first
    if node.target is aten.clone.default:
        return first if not writes and _is_new(first) else None
    if not isinstance(first, fx.Node):
        return None
    if node.target is aten.mul.Tensor and not writes and _holds_ones(first):
        # The first product of a backward pass.
        factor: Any = node.args[1]
        if isinstance(factor, fx.Node) and _form(node) == _form(factor):
            return factor
    is_one = node.target is aten.mul.Scalar and node.args[1] == 1
    if is_one or node.target in _RESHAPES:
        form = _form(node)
        if form is not None and form == _form(first):
            return first
    is_turned_back = node.target is first.target is aten.transpose.int
    if is_turned_back and _form(node) == _form(node_at(first, 0)):
        return first.args[0]
    return None


def _holds_ones(node: fx.Node) -> bool:
    """Whether all values of a node's tensor are 1."""
    while node.target in _RESHAPES:
        node = node_at(node, 0)
    return node.target is aten.ones_like.default


def _add_within_product(node: fx.Node) -> None:
    """Let a sum with a batched product be one call, if both are of one type and the product is used for it alone."""
    one, other = node.args
    offset: Any
    product: Any
    if _is_product(other):
        offset, product = one, other
    else:
        offset, product = other, one
    if not _is_product(product) or node.kwargs or not isinstance(offset, fx.Node) or len(product.users) > 1:
        return
    shape, _, dtype = _form(node)
    if _form(product)[0] == shape and _form(product)[2] == _form(offset)[2] == dtype:
        node.target = aten.baddbmm.default
        node.args = (offset, *product.args)


def _is_product(value: Any) -> bool:
    return isinstance(value, fx.Node) and value.target is aten.bmm.default


def _is_turned(node: fx.Node) -> bool:
    """Whether a node is a batched product, or a factor of one, that is transposed."""
    return node.target is aten.transpose.int and node.args[1:] in _IN_BATCHES


def _squeezes(node: fx.Node) -> bool:
    """Whether a view leaves out the dimension over which a sum was taken."""
    total: Any = node.args[0]
    if not isinstance(total, fx.Node) or total.target is not aten.sum.dim_IntList or total.args[2:] != (True,):
        return False
    dims: Any = total.args[1]
    if len(dims) != 1 or total.kwargs or len(total.users) > 1:
        return False
    shape = list(total.meta["val"].shape)
    del shape[dims[0]]
    return list(node.meta["val"].shape) == shape


def _is_new(node: fx.Node) -> bool:
    """Whether a node's tensor is no view of another one."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return not any(own.alias_info for own in target._schema.returns)


def _form(node: fx.Node) -> Any:
    """Return a node's shape, strides and type; ``None`` if it stands for no tensor."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return None
    return tuple(value.shape), value.stride(), value.dtype
