"""The plan of a traced step: its layers and its loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning.executors.stacked.program.losses import LOSSES, USUAL_OPTIONS, VALUE_LOSSES
from fl_lightning.executors.stacked.program.trace import Graph, Node, Ref

ACTIVATIONS: dict[Any, str] = {
    **dict.fromkeys((F.relu, torch.relu, Tensor.relu), "relu"),
    **dict.fromkeys((torch.tanh, Tensor.tanh, F.tanh), "tanh"),
    **dict.fromkeys((torch.sigmoid, Tensor.sigmoid, F.sigmoid), "sigmoid"),
    **{F.gelu: "gelu", F.silu: "silu", F.elu: "elu", F.leaky_relu: "leaky_relu", F.softplus: "softplus"},
}
_OPTIONS_IN_ORDER: dict[Any, tuple[str, ...]] = {F.softplus: ("beta", "threshold")}  # that layers give without names
_LOG_SOFTMAX = (F.log_softmax, torch.log_softmax, Tensor.log_softmax)
_SHAPES = (
    *(getattr(Tensor, name) for name in ("view", "reshape", "flatten", "ravel", "squeeze", "unsqueeze", "contiguous")),
    *(torch.reshape, torch.flatten, torch.ravel, torch.squeeze, torch.unsqueeze),
)
_TYPES = (Tensor.float, Tensor.double, Tensor.to, Tensor.type_as)


@dataclass(frozen=True)
class Linear:
    """A linear layer: the places of its weight and bias among the parameters."""

    weight: int
    bias: int | None


@dataclass(frozen=True)
class Activation:
    """A pointwise function: its name and its options."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Dropout:
    """Dropout: the share of values that becomes zero."""

    p: float


Layer = Linear | Activation | Dropout


@dataclass(frozen=True)
class Plan:
    """How a step of a chain of layers is carried out.

    Attributes:
        graph: What the step computes.
        layers: Its layers, the first and the last of them linear.
        source: The number of the value of the batch that the first layer takes, up to its shape and type.
        loss: ``"cross_entropy"``, or one of ``VALUE_LOSSES``.
        target: The number of the value of the batch that is the loss's target, up to its shape and type.
        output: The number of the last layer's result.
        result: The number of the loss.
        log_softmax: The number of the output's logarithmic softmax, if the step takes it itself.
    """

    graph: Graph
    layers: tuple[Layer, ...]
    source: int
    loss: str
    target: int
    output: int
    result: int
    log_softmax: int | None = None

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn."""
        return any(isinstance(layer, Dropout) for layer in self.layers)

    def is_like(self, other: Plan) -> bool:
        """Whether another size's plan is the same, up to the graph's shapes."""
        return replace(self, graph=other.graph) == other

    def parameters_used(self) -> set[int]:
        """Return the places of the parameters that the network uses."""
        linear = [layer for layer in self.layers if isinstance(layer, Linear)]
        return {layer.weight for layer in linear} | {layer.bias for layer in linear if layer.bias is not None}


def make_plan(graph: Graph, loss: int) -> Plan:
    """Return how a step is carried out.

    Raises:
        CannotVectorize: If it is no chain of linear layers, pointwise functions and dropout with a usual loss.
    """
    node = _node(graph, loss)
    log_softmax = None
    name = _loss_name(graph, node)
    if name == "nll":
        log_softmax = _argument(node, 0, "input").number
        inner = _node(graph, log_softmax)
        if inner.function not in _LOG_SOFTMAX or _option(inner, 1, "dim") not in (1, -1):
            raise CannotVectorize("nll_loss of something else than a logarithmic softmax")
        output = _argument(inner, 0, "input").number
        name = "cross_entropy"
    else:
        output = _argument(node, 0, "input").number
        if name in VALUE_LOSSES:
            output = _column(graph, output)
    target = _of_batch(graph, _argument(node, 1, "target").number, of_samples=True)
    layers, source = _chain(graph, output)
    _check_uses(graph, layers)
    return Plan(graph, tuple(layers), source, name, target, output, loss, log_softmax)


def _loss_name(graph: Graph, node: Node) -> str:
    options = {key: value for key, value in node.kwargs.items() if key not in ("input", "target")}
    if node.function not in LOSSES or any(value is not None for value in node.args[2:]) or not node.in_graph:
        raise CannotVectorize(f"{_called(node)} as the loss")
    if any(value is not None and value != USUAL_OPTIONS.get(key) for key, value in options.items()):
        raise CannotVectorize(f"{_called(node)} with options")
    name = LOSSES[node.function]
    shape = graph.shape_of(_argument(node, 0, "input").number)
    target = graph.shape_of(_argument(node, 1, "target").number)
    if name in VALUE_LOSSES:
        if shape != target and math.prod(shape) * math.prod(target) != 1:
            raise CannotVectorize(f"{_called(node)} of tensors of unequal shapes")
    elif len(shape) != 2 or len(target) != 1:
        raise CannotVectorize(f"{_called(node)} of more than one prediction a sample, or of probabilities")
    return name


def _column(graph: Graph, number: int) -> int:
    """Return the number of the column, shape ``(n, 1)``, of which a value is the same values in another shape."""
    while len(graph.shape_of(number)) < 2:
        node = _node(graph, number)
        if not node.in_graph or not reshapes(graph, node):
            raise CannotVectorize(f"{_called(node)} after the last linear layer")
        number = node.inputs[0]
    return number


def reshapes(graph: Graph, node: Node) -> bool:
    """Whether a call changes its tensor's shape alone: all values and their type stay, in their order."""
    if node.function is Tensor.__getitem__:
        places = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        if not all(part in (0, -1, None, Ellipsis, slice(None)) for part in places):
            return False
    elif node.function not in _SHAPES:
        return False
    number = node.inputs[0]
    return math.prod(graph.shape_of(number)) == math.prod(node.shape) and graph.dtype_of(number) == node.dtype


def _chain(graph: Graph, output: int) -> tuple[list[Layer], int]:
    """Return the layers up to a value, and the number of the tensor that the first one takes."""
    layers: list[Layer] = []
    number = output
    while True:
        if number < graph.leaves:
            raise CannotVectorize("the loss does not come from a linear layer")
        node = _node(graph, number)
        if not node.in_graph or (number != output and len(graph.users(number)) > 1):
            raise CannotVectorize(f"the result of {_called(node)} is used twice, or without gradients")
        before = _argument(node, 0, "input").number
        if node.function is F.linear:
            layers.append(_linear(graph, node))
            try:
                source = _of_batch(graph, before, of_samples=False)
            except CannotVectorize:
                pass
            else:
                return layers[::-1], source
        else:
            layer = _between(node)
            if layer is not None and not layers:
                raise CannotVectorize(f"{_called(node)} after the last linear layer")
            layers += [] if layer is None else [layer]
        number = before


def _linear(graph: Graph, node: Node) -> Linear:
    places = [part.number for part in (*node.args[1:], *node.kwargs.values()) if isinstance(part, Ref)]
    if not places or any(place >= graph.parameters for place in places) or len(node.shape) != 2:
        raise CannotVectorize("a linear layer of something else than parameters, or of more than a row a sample")
    return Linear(places[0], places[1] if len(places) > 1 else None)


def _between(node: Node) -> Layer | None:
    """Return the layer of a call; ``None`` if it changes nothing."""
    options = tuple((key, value) for key, value in node.kwargs.items() if key not in ("input", "inplace"))
    if node.function is F.dropout:
        values = dict(options)
        if len(node.args) > 1:
            raise CannotVectorize("dropout in an unusual form")
        share = float(values.get("p", 0.5)) if values.get("training", True) else 0.0
        return Dropout(share) if share else None  # torch draws nothing for a share of 0
    names = _OPTIONS_IN_ORDER.get(node.function, ())
    if node.function in ACTIVATIONS and len(node.args) <= 1 + len(names):
        return Activation(ACTIVATIONS[node.function], (*options, *zip(names, node.args[1:], strict=False)))
    raise CannotVectorize(f"{_called(node)} has no place in a chain of layers")


def _check_uses(graph: Graph, layers: Sequence[Layer]) -> None:
    """Raise ``CannotVectorize`` if a parameter is used elsewhere, too."""
    used = [place for layer in layers if isinstance(layer, Linear) for place in (layer.weight, layer.bias)]
    for place in range(graph.parameters):
        if used.count(place) > 1 or len(graph.users(place)) > used.count(place):
            raise CannotVectorize("a parameter is used outside of its linear layer")


def _of_batch(graph: Graph, number: int, of_samples: bool) -> int:
    """Return the number of the value that another one is, up to its shape and type, if that depends on the batch alone.

    Args:
        graph: What the step computes.
        number: The other value.
        of_samples: Whether it may have any shape, with samples first; otherwise it is a row for each sample.

    Raises:
        CannotVectorize: If it depends on parameters or random numbers, or its rows are not the samples.
    """
    shape = graph.shape_of(number)
    while number >= graph.leaves:
        node = _node(graph, number)
        if not reshapes(graph, node) and not _keeps_values(graph, node):
            break
        number = node.inputs[0]
    seen, waiting = {number}, [number]
    while waiting:
        first = waiting.pop()
        if first < graph.parameters:
            raise CannotVectorize("a layer that takes a parameter")
        if first >= graph.leaves:
            node = _node(graph, first)
            if node.function is F.dropout:
                raise CannotVectorize("dropout of the batch")
            waiting += set(node.inputs) - seen
            seen.update(node.inputs)
    samples, original = graph.shapes[graph.parameters][:1], graph.shape_of(number)
    rows = len(shape) == 2 or of_samples
    if not samples or original[:1] != samples or shape[:1] != samples or not rows:
        raise CannotVectorize("a layer whose rows are not the samples")
    return number


def _node(graph: Graph, number: int) -> Node:
    if number not in graph.nodes:
        raise CannotVectorize("the loss does not come from a linear layer")
    return graph.nodes[number]


def _argument(node: Node, place: int, name: str) -> Ref:
    value = node.args[place] if place < len(node.args) else node.kwargs.get(name)
    if not isinstance(value, Ref):
        raise CannotVectorize(f"{_called(node)} of something else than a tensor")
    return value


def _option(node: Node, place: int, name: str) -> Any:
    return node.args[place] if place < len(node.args) else node.kwargs.get(name)


def _called(node: Node) -> str:
    return str(getattr(node.function, "__name__", node.function))


def _keeps_values(graph: Graph, node: Node) -> bool:
    """Whether a call is a cast that leaves what matters: the network takes the type of its weights in the end."""
    given, wanted = graph.dtype_of(node.inputs[0]), node.dtype
    if node.function not in _TYPES or given is None or wanted is None:
        return False
    if wanted.is_floating_point and not given.is_floating_point and wanted.itemsize < 4:
        return False  # half precision has few whole numbers
    return torch.promote_types(given, wanted) == wanted or (wanted == graph.dtypes[0] and given.is_floating_point)
