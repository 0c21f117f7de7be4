"""Flat lists of operations, made shorter: a small model's step takes as long as its calls, not as its arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import BuiltinFunctionType
from typing import Any

import torch
from torch import Tensor, fx

aten = torch.ops.aten
_IN_BATCHES = {(1, 2), (2, 1), (-1, -2), (-2, -1)}  # of dimensions, that `transpose` turns in a batched product
_NOTHING = {aten.alias.default, aten.detach.default}
_RESHAPES = {
    *(aten.expand.default, aten.view.default, aten._unsafe_view.default, aten.reshape.default),
    *(aten.permute.default, aten.transpose.int),
}


def simplify(graph: fx.Graph, draw: Callable[..., Any]) -> None:
    """Leave out operations that change nothing, add within products, and let random operations draw by client."""
    calls = [node.target for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    writes = any(target._schema.is_mutable for target in calls)
    for node in list(graph.nodes):
        first: Any = node.args[0] if node.args else None
        same = isinstance(first, fx.Node) and _form(first) is not None and _form(first) == _form(node)
        if node.op != "call_function":
            continue
        is_copied = node.target is aten.clone.default and not writes and _is_new(first)
        is_one = node.target is aten.mul.Scalar and node.args[1] == 1
        if node.target in _NOTHING or is_copied or (same and (node.target in _RESHAPES or is_one)):
            node.replace_all_uses_with(first)
            graph.erase_node(node)
        elif node.target is aten.add.Tensor and not node.kwargs and any(map(_is_product, node.args)):
            offset, product = node.args if _is_product(node.args[1]) else node.args[::-1]
            alike = [isinstance(each, fx.Node) and _form(each)[2] == _form(node)[2] for each in node.args]
            if all(alike) and len(product.users) == 1 and _form(node)[0] == _form(product)[0]:
                node.target, node.args = aten.baddbmm.default, (offset, *product.args)
        elif node.target is aten.transpose.int and _undoes(node, first):
            node.replace_all_uses_with(first.args[0])  # type: ignore[union-attr]
            graph.erase_node(node)
        elif node.target is aten.view.default and _squeezes(node, first):
            node.target, node.args = aten.sum.dim_IntList, first.args[:2]  # type: ignore[union-attr]
        elif torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            node.target, node.args = draw, (node.target, *node.args)
    for node in graph.nodes:  # kernels may lay their results out otherwise than the traced ones
        if node.target in (aten.view.default, aten._unsafe_view.default) and not writes:
            node.target = aten.reshape.default


def step_at_end(graph: fx.Graph, used: Sequence[int], step: Callable[..., Any]) -> None:
    """Step each parameter by its gradient; where that is a product, by the product at once."""
    output = graph.output_node()
    outputs = list(output.args[0])  # type: ignore[arg-type, call-overload]
    number = len(outputs) - len(used)
    with graph.inserting_before(output):
        for place, gradient in zip(used, outputs[number:], strict=True):
            turned = gradient.target is aten.transpose.int and gradient.args[1:] in _IN_BATCHES
            product: Any = gradient.args[0] if turned else gradient
            if not _is_product(product) or len(gradient.users) > 1:
                factors: Any = (gradient,)
            else:
                factors = [_turned(graph, f) for f in product.args[::-1]] if turned else product.args
            graph.call_function(step, (place, *factors))
    output.args = (outputs[:number],)


def as_called_fastest(target: Any) -> Any:
    """Return the function of ``torch`` that does the same as an overload, in half the time that a call takes."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or target._schema.is_mutable:
        return target
    function = getattr(torch, target.overloadpacket.__name__, None)
    takes_gaps = "Tensor?[]" in str(target._schema)  # as indices of `x[:, [0, 2]]`, which the function does not take
    return function if isinstance(function, BuiltinFunctionType) and not takes_gaps else target


def _is_product(value: Any) -> bool:
    return isinstance(value, fx.Node) and value.target is aten.bmm.default


def _undoes(node: fx.Node, first: Any) -> bool:
    """Whether a transposition undoes another one."""
    return isinstance(first, fx.Node) and first.target is aten.transpose.int and _form(node) == _form(first.args[0])  # type: ignore[arg-type]


def _turned(graph: fx.Graph, factor: Any) -> Any:
    """Return the transposed factor of a batched product."""
    if factor.target is aten.transpose.int and factor.args[1:] in _IN_BATCHES:
        return factor.args[0]
    return graph.call_function(aten.transpose.int, (factor, 1, 2))


def _squeezes(node: fx.Node, first: Any) -> bool:
    """Whether a view leaves out the dimension over which a sum was taken."""
    if not isinstance(first, fx.Node) or first.target is not aten.sum.dim_IntList or first.args[2:] != (True,):
        return False
    dims: Any = first.args[1]
    if len(dims) != 1 or first.kwargs or len(first.users) > 1:
        return False
    shape = list(first.meta["val"].shape)
    del shape[dims[0]]
    return list(node.meta["val"].shape) == shape


def _is_new(node: Any) -> bool:
    """Whether a node's tensor is no view of another one."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and not any(own.alias_info for own in target._schema.returns)


def _form(node: Any) -> Any:
    value = node.meta.get("val")
    return (tuple(value.shape), value.stride(), value.dtype) if isinstance(value, Tensor) else None
